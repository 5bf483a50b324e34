"""An adapter on a model: made from the `adapter` section, or read to go on with; checked before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.adapters.base import fault, marks_of
from toolkit.adapters.folder import ADAPTER, CONFIG, start_of
from toolkit.adapters.methods import METHODS, Method, method_of
from toolkit.adapters.quiet import quiet
from toolkit.adapters.targets import check_targets, saves, targets
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
    say(describe(adapted))
    return adapted


def describe(model: PeftModel) -> str:
    """What is trained, in one line."""
    config: Any = model.peft_config[ADAPTER]
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    every = sum(_numbers(p) for p in model.parameters())
    names = [name for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]
    ends = ", ".join(dict.fromkeys(name.rsplit(".", 1)[-1] for name in names if not name.endswith("token_adapter")))
    whole = dict.fromkeys(name.rsplit(".", 1)[-1] for name in sorted(config.modules_to_save or ()))
    more = [f"{', '.join(whole)} whole"] if whole else []
    rows = getattr(config, "trainable_token_indices", None)
    if rows:
        count = len({index for part in (rows.values() if isinstance(rows, dict) else [rows]) for index in part})
        more.append(f"the embeddings of {count} tokens")
    beside = f", and {', '.join(more)}" if more else ""
    adapted = sum(not name.endswith("token_adapter") for name in names)
    return (
        f"adapter: {method_of(config)} on {adapted} modules ({ends}){beside}: "
        f"{trained:,} trainable parameters, {trained / every:.2%} of {every:,}"
    )


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
    options |= _tied(model, config, method, rows_trained=bool(of.added_tokens or config.trainable_tokens))
    rows = _token_rows(model, tokenizer, config, of, method)
    if rows:
        options["trainable_token_indices"] = rows
    _check_head(model, config, method)
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


def _tied(
    model: PreTrainedModel, config: AdapterConfig, method: Method, *, rows_trained: bool = False
) -> dict[str, Any]:
    """Options for a model whose embeddings and head are one matrix."""
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not getattr(model.config.get_text_config(), "tie_word_embeddings", False) or head is None:
        if config.tied_embeddings is not None:
            raise UserError(
                "adapter.tied_embeddings: the embeddings and the head of this model are not tied; remove it"
            )
        return {}
    adapted = [one for one in (embeddings, head) if targets(model, config, one)]
    saved = [one for one in (embeddings, head) if saves(model, config, one)]
    if not adapted and not saved:
        kept = rows_trained and config.tied_embeddings == "keep"  # rows of one matrix: that is what happens
        if config.tied_embeddings is not None and not kept:
            raise UserError("adapter.tied_embeddings: neither embeddings nor head are trained; remove it")
        return {}
    if config.tied_embeddings is None:
        raise UserError(
            "adapter: embeddings and head of this model are one matrix, and an adapter would train a copy of it in one place "
            "only; choose adapter.tied_embeddings: keep (train one matrix, modules_to_save: [embed_tokens]) or untie (two "
            "matrices from now on, the merged model is larger)"
        )
    if config.tied_embeddings == "untie":
        model.config.get_text_config().tie_word_embeddings = False
        return {}
    if adapted or not method.tokens:
        raise UserError(
            f"adapter.tied_embeddings: keep needs a LoRA method and the matrix in adapter.modules_to_save, not in "
            f"target_modules (method {config.method}); or choose untie"
        )
    return {"ensure_weight_tying": True}


def _token_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: AdapterConfig, of: ModelConfig, method: Method
) -> dict[str, list[int]]:
    """Rows of embeddings and head to train, by the name of the module."""
    tokens = list(dict.fromkeys([*of.added_tokens, *config.trainable_tokens]))
    if not tokens:
        return {}
    vocabulary = tokenizer.get_vocab()
    unknown = [token for token in tokens if token not in vocabulary]
    if unknown:
        raise UserError(
            f"adapter.trainable_tokens: {', '.join(map(repr, unknown))} are not in the vocabulary; model.new_tokens adds them"
        )
    ids = sorted(vocabulary[token] for token in tokens)
    names = {module: name for name, module in model.named_modules()}
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False))
    rows = {}
    for module in (embeddings, None if tied else head):
        if module is None or saves(model, config, module):
            continue
        if not method.tokens or targets(model, config, module):
            raise UserError(
                f"adapter: the rows of {', '.join(tokens)} would stay as they were made, random and frozen: {config.method} "
                "cannot train single rows of a matrix here; use a LoRA method that does not target it, or put it into "
                "adapter.modules_to_save"
            )
        rows[names[module]] = ids
    return rows


def _check_head(model: PreTrainedModel, config: AdapterConfig, method: Method) -> None:
    """The loss takes the head's matrix, never its forward, so an adapter there must be something to add to the matrix."""
    if targets(model, config, model.get_output_embeddings()) and (not method.additive or config.dropout):
        raise UserError(
            f"adapter.target_modules: the output head can only have an adapter that adds to its matrix, without dropout "
            f"(method {config.method}, dropout {config.dropout:g}); put it into adapter.modules_to_save"
        )


def _keys(method: Method) -> set[str]:
    return {item.name for item in fields(method.make)}  # type: ignore[arg-type]


def _numbers(parameter: torch.nn.Parameter) -> int:
    """Numbers that a parameter stands for: two 4-bit ones share a byte."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else int(torch.Size(state.shape).numel())
