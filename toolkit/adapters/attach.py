"""An adapter on a model: made from the `adapter` section, or read to go on with; checked before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.adapters.adapted import ADAPTER, CONFIG
from toolkit.adapters.base import fault, marks_of
from toolkit.adapters.ends import check_head, tied_options, token_rows
from toolkit.adapters.folder import start_of
from toolkit.adapters.methods import METHODS, Method, method_of
from toolkit.adapters.parts import parts_of
from toolkit.adapters.quiet import quiet
from toolkit.adapters.targets import check_targets
from toolkit.config import AdapterConfig, ModelConfig
from toolkit.errors import UserError


def attach(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    config: AdapterConfig,
    of: ModelConfig,
    *,
    seed: int,
    say: Callable[[str], None],
) -> PeftModel:
    """`model` with an adapter on it, whose parameters are fp32 and the only ones that are trained.

    Raises UserError for modules and tokens that are not there, choices that the method cannot carry out, and tied embeddings
    that are to be trained without a word on whether they stay tied.
    """
    if of.random_init:
        raise UserError(
            "adapter: the base of an adapter must be found again, and with model.random_init it is nowhere; train the whole "
            "model (adapter.method: none), or give the adapter a model with weights"
        )
    torch.manual_seed(seed)
    with quiet():
        goes_on = config.name_or_path is not None
        adapted = _continued(model, config, say) if goes_on else _new(model, tokenizer, config, of)
    peft_config = adapted.peft_config[ADAPTER]
    peft_config.base_model_name_or_path, peft_config.revision = of.name_or_path, of.revision
    peft_config.task_type = "CAUSAL_LM"
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    if not any(p.requires_grad for p in adapted.parameters()):
        raise UserError("adapter: nothing is trainable; check adapter.target_modules")
    method = METHODS[method_of(peft_config) or "lora"]
    start = start_of(adapted)  # of every method, so that an adapter which cannot be written fails here
    adapted.start_of_adapter = start if method.moves_base else {}  # type: ignore[assignment]
    adapted.base_marks = marks_of(adapted, moved=method.moves_base)  # type: ignore[assignment]
    say(parts_of(adapted).describe())
    return adapted


def _new(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: AdapterConfig, of: ModelConfig
) -> PeftModel:
    method = METHODS[config.method]
    check_targets(model, config)
    targeted = config.target_modules
    options: dict[str, Any] = {  # copies, since peft adds to them
        "target_modules": list(targeted) if isinstance(targeted, list) else targeted,
        "modules_to_save": list(config.modules_to_save) or None,
        "exclude_modules": list(config.exclude_modules) or None,
    }
    if config.exclude_modules and "exclude_modules" not in _keys(method):
        raise UserError(f"adapter.exclude_modules: {config.method} has no such option; name what it goes to instead")
    if config.dropout and config.method in ("ia3", "hra"):
        raise UserError(f"adapter.dropout: {config.method} has no dropout; remove it")
    if method.moves_base and of.quantization:
        raise UserError(
            f"adapter.method: {config.method} begins by taking its part out of the base weights, which are quantized "
            f"(model.quantization: {of.quantization}); use lora"
        )
    options |= tied_options(model, config, method, rows_trained=bool(of.added_tokens or config.trainable_tokens))
    rows = token_rows(model, tokenizer, config, of, method)
    if rows:
        options["trainable_token_indices"] = rows
    check_head(model, config, method)
    known = {key: value for key, value in options.items() if key in _keys(method) and value is not None}
    peft_config = method.make(task_type="CAUSAL_LM", **method.sizes(config), **known)
    try:
        return get_peft_model(model, peft_config)
    except ValueError as error:
        raise UserError(f"adapter: {' '.join(str(error).split())}") from None


def _continued(model: PreTrainedModel, config: AdapterConfig, say: Callable[[str], None]) -> PeftModel:
    """The adapter of `config.name_or_path`, to be trained further."""
    name = _folder(str(config.name_or_path))
    defaults = AdapterConfig()
    differing = [
        f"adapter.{item.name}"
        for item in fields(AdapterConfig)
        if item.name not in ("name_or_path", "tied_embeddings")
        and getattr(config, item.name) != getattr(defaults, item.name)
    ]
    if differing:
        raise UserError(
            f"adapter.name_or_path: {name} brings its own method, sizes and modules; remove {', '.join(differing)}"
        )
    try:
        peft_config = PeftConfig.from_pretrained(name)
        if method_of(peft_config) is None:
            raise UserError(
                f"adapter.name_or_path: {name} is of a kind that cannot be trained here ({peft_config.peft_type})"
            )
        adapted = PeftModel.from_pretrained(model, name, is_trainable=True)
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"adapter.name_or_path: cannot load {name}: {' '.join(str(error).split())[:300]}") from None
    start = getattr(adapted.peft_config[ADAPTER], "init_lora_weights", True)
    if start not in (True, False):
        raise UserError(
            f"adapter.name_or_path: {name} was saved with init_lora_weights: {start}, so it does not "
            "fit the base as it is; save it converted to LoRA"
        )
    if (found := fault(adapted, Path(name))) is not None:
        say(f"warning: adapter.name_or_path: {name} was trained on another base than {model.name_or_path}: {found}")
    say(f"adapter: going on from {name}")
    return adapted


def _folder(name: str) -> str:
    """Of a run's folder, its adapter. Raises UserError for a path that has none."""
    path = Path(name).expanduser()
    if (path / "model" / CONFIG).is_file():
        return str(path / "model")
    if path.is_dir() and not (path / CONFIG).is_file():
        raise UserError(
            f"adapter.name_or_path: {path.absolute()} holds no adapter ({CONFIG}); give OUTPUT/model of a run, or make a "
            "folder of a checkpoint with toolkit export"
        )
    if not path.exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise UserError(f"adapter.name_or_path: {path.absolute()} does not exist")
    return str(path) if path.exists() else name


def _keys(method: Method) -> set[str]:
    return {item.name for item in fields(method.make)}  # type: ignore[arg-type]
