"""What a run has left, loaded to be used: a finished model or adapter, a merged folder, a checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from peft import PeftModel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from toolkit.adapters.folder import CONFIG
from toolkit.build import build_model
from toolkit.checkpoint.folder import MARKER
from toolkit.checkpoint.resume import named_checkpoint
from toolkit.checkpoint.tensors import WEIGHT, read_tensors, stored_tensors
from toolkit.config import AdapterConfig, ModelConfig, RunConfig
from toolkit.errors import UserError
from toolkit.models import load_model, load_tokenizer, resolve_dtype

# Names of the model's tensors in a checkpoint: it is the `model` of an `ObjectiveModule`.
PREFIX = f"{WEIGHT}model."

SectionT = TypeVar("SectionT")


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
        model, tokenizer = _with_adapter(place.path, dtype)
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
    recorded = adapter.parent / "config.yaml"
    if recorded.is_file():
        told = (yaml.safe_load(recorded.read_text(encoding="utf-8")) or {}).get("model") or {}
        if told.get("name_or_path") == name:
            return section(ModelConfig, told)
    gguf = sorted(Path(name).glob("*.gguf")) if not (Path(name) / "config.json").is_file() else []
    return ModelConfig(
        name_or_path=name, revision=said.get("revision"), gguf_file=gguf[0].name if len(gguf) == 1 else None
    )


def load_checkpoint(path: Path, *, dtype: str | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model of a checkpoint; of an adapter's, on its base. dtype: another than its run had.

    Raises UserError for a damaged one.
    """
    checkpoint = named_checkpoint(path)
    description, config = path / "model", _recorded(checkpoint.record)
    tokenizer = AutoTokenizer.from_pretrained(description)
    stored = stored_tensors(path)
    if config.adapter.wanted:
        config.model.dtype = dtype or config.model.dtype
        precision = str(checkpoint.record["layout"]["mixed_precision"])
        model = build_model(config, tokenizer, mixed_precision=precision, say=lambda message: None)
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


def _with_adapter(folder: Path, dtype: str | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    of = base_of(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = load_model(replace(of, dtype=dtype or of.dtype), seed=0, frozen=True)
    rows = model.get_input_embeddings().weight.shape[0]  # type: ignore[union-attr, index]
    if len(tokenizer) > rows:
        # What peft's AutoPeftModel does: rows of new tokens, which the adapter brings.
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    try:
        return cast(PreTrainedModel, PeftModel.from_pretrained(model, str(folder))), tokenizer
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{folder}: the adapter does not go with {of.name_or_path}: {reason}") from None


def _recorded(record: dict[str, Any]) -> RunConfig:
    config = record["config"]
    return RunConfig(
        model=section(ModelConfig, config["model"]),
        adapter=section(AdapterConfig, config.get("adapter") or {}),
        seed=int(config["seed"]),
    )


def section(kind: type[SectionT], values: dict[str, Any]) -> SectionT:
    """A section of a recorded configuration, without keys that there are no more."""
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    return kind(**{key: value for key, value in values.items() if key in known})
