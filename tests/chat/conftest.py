"""Small models that say different things, and finished runs made of them without training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from toolkit.adapters.folder import write_finished
from toolkit.build import build_model
from toolkit.config import AdapterConfig, ModelConfig, RunConfig
from toolkit.models import load_tokenizer
from toolkit.parsing import to_yaml


@pytest.fixture(scope="session")
def talker(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with weights so large that its answers depend on what it is asked."""
    folder = tmp_path_factory.mktemp("talker")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.ndim > 1 else 1)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("e")]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def adapter_run(talker: Path, tmp_path: Path) -> Callable[..., Path]:
    """Make a run's folder with a finished adapter on the talker, whose numbers are random."""

    def make(adapter: AdapterConfig, *, base: Path = talker, **model: object) -> Path:
        config = RunConfig(
            model=ModelConfig(name_or_path=str(base), **model),  # type: ignore[arg-type]
            adapter=adapter,
            output_dir=str(tmp_path / "run"),
        )
        tokenizer = load_tokenizer(config.model)
        built = build_model(config, tokenizer, mixed_precision="no", say=lambda message: None)
        torch.manual_seed(5)
        trained = {n: p for n, p in built.named_parameters(remove_duplicate=False) if p.requires_grad}
        with torch.no_grad():
            for parameter in set(trained.values()):
                parameter += 0.3 * torch.randn_like(parameter)
        write_finished(built, trained, tokenizer, tmp_path / "run" / "model")  # type: ignore[arg-type]
        (tmp_path / "run" / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
        return tmp_path / "run"

    return make
