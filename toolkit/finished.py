"""What a run has left, loaded to be used: a finished model or adapter, a merged folder, a checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from toolkit.adapters.adapted import CONFIG
from toolkit.build import build_model
from toolkit.checkpoint.folder import MARKER
from toolkit.checkpoint.resume import named_checkpoint
from toolkit.checkpoint.tensors import WEIGHT, read_tensors, stored_tensors
from toolkit.config import ModelConfig, RunConfig
from toolkit.errors import UserError
from toolkit.models import embedding_rows, load_model, load_tokenizer, resolve_dtype
from toolkit.quantization import dequantized
from toolkit.recorded import config_in, config_of

# Names of the model's tensors in a checkpoint: it is the `model` of an `ObjectiveModule`.
PREFIX = f"{WEIGHT}model."


@dataclass(frozen=True)
class Place:
    """A folder that holds a model. kind: adapter, model or checkpoint."""

    path: Path
    kind: str

    @property
    def description(self) -> Path:
        """Where its tokenizer is."""
        return self.path / "model" if self.kind == "checkpoint" else self.path


def find(name: Path) -> Place:
    """The model that `name` is or has: a run's folder has it in model/. Raises UserError where there is none."""
    if not name.is_dir():
        raise UserError(
            f"{name.absolute()} does not exist; give a run's folder, a model's, an adapter's or a checkpoint's"
        )
    if (name / MARKER).exists():
        return Place(name, "checkpoint")
    for path in (name, name / "model"):
        for file, kind in ((CONFIG, "adapter"), ("config.json", "model")):
            if (path / file).is_file():
                return Place(path, kind)
    checkpoints = sorted(name.glob("checkpoint-*"))
    hint = f"; it has {checkpoints[-1].name}, give that" if checkpoints else ""
    raise UserError(f"{name.absolute()} holds no finished model (model/), adapter or checkpoint{hint}")


def load_finished(name: Path, *, dtype: str | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model that `find` finds, with its tokenizer, on the CPU and in eval mode.

    dtype: of the weights, where an adapter's base is not quantized; by default float32, and what a checkpoint's run had.
    Raises UserError for what cannot be loaded.
    """
    place = find(name)
    if place.kind == "checkpoint":
        model, tokenizer = load_checkpoint(place.path, dtype=dtype)
    elif place.kind == "adapter":
        of = base_of(place.path)
        model, tokenizer = with_adapter(place.path, replace(of, dtype=dtype or of.dtype))
    else:
        of = ModelConfig(name_or_path=str(place.path), dtype=dtype)
        model, tokenizer = load_model(of, seed=0, frozen=True), load_tokenizer(of)
    if (place.description / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(place.description)
    return model.eval(), tokenizer


def load_finished_tokenizer(place: Place) -> PreTrainedTokenizerBase:
    """The tokenizer of what is there, without its model. Raises UserError where there is none."""
    try:
        return AutoTokenizer.from_pretrained(place.description)
    except (OSError, ValueError) as error:
        raise UserError(f"{place.description}: no tokenizer that loads: {' '.join(str(error).split())[:300]}") from None


def base_of(adapter: Path) -> ModelConfig:
    """The base of an adapter's folder: as its run was told, where that stands beside it, else what the adapter names."""
    said = json.loads((adapter / CONFIG).read_text(encoding="utf-8"))
    name = said.get("base_model_name_or_path")
    if not name:
        raise UserError(f"{adapter / CONFIG} names no base model (base_model_name_or_path)")
    recorded = config_in(adapter.parent)
    if recorded is not None and recorded.model.name_or_path == name:
        return recorded.model
    gguf = sorted(Path(name).glob("*.gguf")) if not (Path(name) / "config.json").is_file() else []
    return ModelConfig(
        name_or_path=name, revision=said.get("revision"), gguf_file=gguf[0].name if len(gguf) == 1 else None
    )


def recorded_in(place: Place) -> RunConfig | None:
    """The configuration of the run that left what is at `place`; None where none stands beside it."""
    if place.kind == "checkpoint":
        return config_of(named_checkpoint(place.path).record["config"])
    return config_in(place.path.parent)


def base_in(place: Place) -> ModelConfig | None:
    """The base of an adapter that is a folder or in a checkpoint; None for a whole model."""
    if place.kind == "adapter":
        return base_of(place.path)
    recorded = recorded_in(place) if place.kind == "checkpoint" else None
    return recorded.model if recorded is not None and recorded.adapter.wanted else None


def with_adapter(
    folder: Path, of: ModelConfig, *, dequantize: torch.dtype | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The adapter of a folder on its base `of`, whose quantized weights become ordinary ones where `dequantize` says of
    which dtype."""
    from peft import PeftModel

    from toolkit.adapters.base import check_base
    from toolkit.adapters.quiet import quiet

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = load_model(of, seed=0, frozen=True)
    if of.quantization and dequantize is not None:
        model = dequantized(model, dequantize)
    if len(tokenizer) > embedding_rows(model):
        # What peft's AutoPeftModel does: rows of new tokens, which the adapter brings.
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    try:
        with quiet():
            adapted = PeftModel.from_pretrained(model, str(folder))
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{folder}: the adapter does not go with {of.name_or_path}: {reason}") from None
    check_base(adapted, folder)
    return cast(PreTrainedModel, adapted), tokenizer


def load_checkpoint(path: Path, *, dtype: str | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model of a checkpoint; of an adapter's, on its base in `dtype`. Raises UserError for a damaged one."""
    checkpoint = named_checkpoint(path)
    description, config = path / "model", config_of(checkpoint.record["config"])
    tokenizer = AutoTokenizer.from_pretrained(description)
    stored = stored_tensors(path)
    if config.adapter.wanted:
        config.model.dtype = dtype or config.model.dtype
        precision = str(checkpoint.record["layout"]["mixed_precision"])
        model = build_model(config, tokenizer, mixed_precision=precision, say=lambda message: None)
        from toolkit.adapters.base import check_base

        check_base(model, description)  # type: ignore[arg-type]
        read_tensors(path, {PREFIX + name: p.data for name, p in model.named_parameters() if p.requires_grad})
        return model, tokenizer
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(description))
    missing = {name for name, _ in model.named_parameters() if PREFIX + name not in stored}
    if missing:
        raise UserError(f"{path} has no {min(missing)}: it holds what was trained, not the whole model")
    there = {name for name in model.state_dict() if PREFIX + name in stored}
    dtypes = {stored[PREFIX + name].properties.dtype for name in there}
    model = model.to(dtypes.pop() if len(dtypes) == 1 else None)
    read_tensors(path, {PREFIX + name: tensor for name, tensor in model.state_dict().items() if name in there})
    return model.to(resolve_dtype(dtype) if dtype else None), tokenizer
