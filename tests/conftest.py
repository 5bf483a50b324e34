"""A tiny chat model that is made here, so that tests need neither network nor downloads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# One thread a process, also of those that tests start: threads that wait for each other on cores which other tests use too
# take many times as long. Before torch is imported, which reads it once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tokenized data of the tests, also of the processes that they launch, is not kept among the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Llama of about 50,000 parameters (random, fixed) and a byte-level ChatML tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny_model")
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    trained.train_from_iterator(["user assistant system question answer the a of to and in is"] * 20, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained, eos_token="<|im_end|>", pad_token="<|endoftext|>", additional_special_tokens=special
    )
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=320,
            hidden_size=32,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def untied_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a head of its own."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("untied_model")
    for file in tiny_model.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_pretrained(tiny_model, tie_word_embeddings=False)
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.02)
    model.save_pretrained(folder)
    return folder


def _fitted(folder: Path, of: Path) -> Path:
    """The model of `of` with exactly one embedding row per token; the others have some to spare."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(of)
    model = AutoModelForCausalLM.from_pretrained(of)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def fitted_models(tiny_model: Path, untied_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bases by name, without spare rows and with them."""
    folder = tmp_path_factory.mktemp("fitted")
    return {
        "tied": _fitted(folder / "tied", tiny_model),
        "untied": _fitted(folder / "untied", untied_model),
        "tied, spare rows": tiny_model,
        "untied, spare rows": untied_model,
    }


@pytest.fixture
def build(tiny_model: Path):
    """A model with an adapter, its tokenizer and what was said, from keys of the two sections."""
    from toolkit.build import build_model
    from toolkit.config import AdapterConfig, ModelConfig, RunConfig
    from toolkit.models import load_tokenizer

    def make(folder: Path = tiny_model, *, model: dict | None = None, seed: int = 0, **adapter):
        said: list[str] = []
        adapter = {"method": "lora", **adapter} if "name_or_path" not in adapter else adapter
        config = RunConfig(
            model=ModelConfig(name_or_path=str(folder), **(model or {})), adapter=AdapterConfig(**adapter), seed=seed
        )
        tokenizer = load_tokenizer(config.model)
        return build_model(config, tokenizer, mixed_precision="no", say=said.append), tokenizer, said

    return make
