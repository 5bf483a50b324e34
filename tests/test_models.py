"""Models and tokenizers come from where the config says, in the dtype it says, or the run ends at once."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import torch

from toolkit.build import check_recipe
from toolkit.config import AdapterConfig, ModelConfig, RunConfig
from toolkit.errors import UserError
from toolkit.export import set_turn_end
from toolkit.models import check_vocabulary, describe_dtypes, load_model, load_tokenizer, resolve_dtype


@pytest.mark.parametrize(
    ("word", "dtype"),
    [
        ("bf16", torch.bfloat16),
        ("bfloat16", torch.bfloat16),
        ("torch.bfloat16", torch.bfloat16),
        ("BF16", torch.bfloat16),
        ("fp32", torch.float32),
        ("float", torch.float32),
        ("half", torch.float16),
        ("auto", None),
        (None, torch.float32),
    ],
)
def test_dtype_words(word: str | None, dtype: torch.dtype | None) -> None:
    assert resolve_dtype(word) == dtype


@pytest.mark.parametrize("word", ["int8", "float8", "bf-16", ""])
def test_an_unknown_dtype_lists_those_that_are_known(tiny_model: Path, word: str) -> None:
    # Asked of the tokenizer, which a run loads first: an error must not wait for the data.
    with pytest.raises(UserError, match=r"model\.dtype: .*accepted: auto, float32, .*bf16"):
        load_tokenizer(ModelConfig(name_or_path=str(tiny_model), dtype=word))


def test_fp16_weights_are_refused_before_the_data(tiny_model: Path) -> None:
    """E02: as trained weights; as the frozen base of an adapter they are fine."""
    half = ModelConfig(name_or_path=str(tiny_model), dtype="float16")
    with pytest.raises(UserError, match=r"model\.dtype: float16.*mixed_precision: fp16.*adapter"):
        check_recipe(RunConfig(model=half), sharded=False)
    check_recipe(RunConfig(model=half, adapter=AdapterConfig(method="lora")), sharded=False)
    with pytest.raises(UserError, match=r"model\.dtype: float16"):
        load_model(half, seed=0)
    assert load_model(half, seed=0, frozen=True).dtype == torch.float16


@pytest.mark.parametrize("load", [load_tokenizer, lambda config: load_model(config, seed=0)])
def test_a_missing_path_is_not_looked_for_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "near").mkdir()
    (tmp_path / "file.bin").write_text("")
    cases = {
        "./modles/smollm2": ["path does not exist", str(tmp_path / "modles" / "smollm2"), f"exists: {tmp_path})"],
        "/data-of-nobody/none": ["path does not exist", "exists: /)"],
        "near/x/y": ["path does not exist", f"exists: {tmp_path / 'near'})"],
        "~/no-such-folder-here": ["path does not exist", str(Path.home() / "no-such-folder-here")],
        "./near": ["has no config.json", str(tmp_path / "near")],
        "file.bin": ["has no config.json"],
    }
    started = time.monotonic()
    for name, parts in cases.items():
        with pytest.raises(UserError) as info:
            load(ModelConfig(name_or_path=name))
        assert all(part in str(info.value) for part in ["model.name_or_path", *parts]), info.value
    with pytest.raises(UserError, match="not set"):
        load(ModelConfig())
    with pytest.raises(UserError, match=r"has no m\.gguf"):
        load(ModelConfig(name_or_path="near", gguf_file="m.gguf"))
    assert time.monotonic() - started < 2


def test_weights_come_in_the_dtype_of_the_config(tiny_model: Path) -> None:
    model = load_model(ModelConfig(name_or_path=str(tiny_model)), seed=0)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.training
    assert describe_dtypes(model) == "float32 trainable"
    half = load_model(ModelConfig(name_or_path=str(tiny_model), dtype="bf16"), seed=0)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    next(half.parameters()).requires_grad_(False)
    assert describe_dtypes(half) == "bfloat16 trainable, bfloat16 frozen"


def test_random_weights_depend_on_the_seed_alone(tiny_model: Path) -> None:
    config = ModelConfig(name_or_path=str(tiny_model), random_init=True)

    def weights(seed: int) -> torch.Tensor:
        torch.rand(seed + 1)  # an earlier draw must not matter
        return torch.cat([p.detach().flatten() for p in load_model(config, seed=seed).parameters()])

    first = weights(1)
    assert torch.equal(first, weights(1))
    assert not torch.equal(first, weights(2))
    stored = load_model(ModelConfig(name_or_path=str(tiny_model)), seed=1)
    assert not torch.equal(first, torch.cat([p.detach().flatten() for p in stored.parameters()]))


def test_random_weights_need_no_weights_in_the_folder(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "m", ignore=shutil.ignore_patterns("*.safetensors"))
    load_model(ModelConfig(name_or_path=str(tmp_path / "m"), random_init=True), seed=0)
    with pytest.raises(UserError, match=r"cannot load .*/m"):
        load_model(ModelConfig(name_or_path=str(tmp_path / "m")), seed=0)


def test_token_ids_without_an_embedding_row_are_refused(tiny_model: Path) -> None:
    """D19."""
    tokenizer = load_tokenizer(ModelConfig(name_or_path=str(tiny_model)))
    model = load_model(ModelConfig(name_or_path=str(tiny_model)), seed=0)
    rows = model.config.vocab_size
    check_vocabulary(model, tokenizer, rows - 1)
    while len(tokenizer) <= rows:
        tokenizer.add_tokens([f"<new {len(tokenizer)}>"])
    with pytest.raises(UserError, match=rf"token id {rows} \('<new {rows}>'\) >= {rows} embedding rows"):
        check_vocabulary(model, tokenizer, rows)


def test_a_missing_pad_token_becomes_the_end_token_and_another_one_stays(tiny_model: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(ModelConfig(name_or_path=str(tiny_model)))
    assert tokenizer.pad_token == "<|endoftext|>"
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "a")
    shutil.copy(tiny_model / "config.json", tmp_path / "a")
    assert load_tokenizer(ModelConfig(name_or_path=str(tmp_path / "a"))).pad_token == "<|im_end|>"
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "b")
    shutil.copy(tiny_model / "config.json", tmp_path / "b")
    with pytest.raises(UserError, match="no end-of-sequence token"):
        load_tokenizer(ModelConfig(name_or_path=str(tmp_path / "b")))


@pytest.mark.parametrize(
    ("known", "turn_end", "missing", "after"),
    [(0, [2], [2], [2, 0]), ([0, 2], [2], [], [0, 2]), (2, [2], [], 2), (None, [2], [2], [2]), (0, [], [], 0)],
)
def test_generation_stops_where_a_turn_ends(tiny_model: Path, known, turn_end, missing, after) -> None:
    model = load_model(ModelConfig(name_or_path=str(tiny_model)), seed=0)
    model.generation_config.eos_token_id = known
    assert set_turn_end(model, turn_end) == missing
    assert model.generation_config.eos_token_id == after
