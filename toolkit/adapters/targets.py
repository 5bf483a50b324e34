"""Which modules of a model an adapter goes to: names are looked up before peft does, and what is missing is said."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from toolkit.config import AdapterConfig
from toolkit.errors import UserError

ALL_LINEAR = "all-linear"
# Layers of peft's adapters stand for these; quantized ones are linear too.
_ADAPTABLE = (torch.nn.Linear, torch.nn.Embedding, torch.nn.Conv1d, torch.nn.Conv2d)


def check_targets(model: PreTrainedModel, config: AdapterConfig) -> None:
    """Raises UserError for a name or a regex of `target_modules`, `exclude_modules` or `modules_to_save` without a module."""
    modules = {name: module for name, module in model.named_modules() if name}
    adaptable = [name for name, module in modules.items() if _is_adaptable(module)]
    wanted = config.target_modules
    if isinstance(wanted, list):
        if not wanted:
            raise UserError(f"adapter.target_modules: the list is empty; name modules, such as {_some(adaptable)}")
        _refuse_missing("adapter.target_modules", wanted, adaptable)
    elif wanted != ALL_LINEAR:
        try:
            matching = [name for name in adaptable if re.fullmatch(wanted, name)]
        except re.error as error:
            raise UserError(f"adapter.target_modules: {wanted!r} is not a regex: {error}") from None
        if not matching:
            example = next((name for name in adaptable if re.search("[0-9]", name)), "none")
            raise UserError(
                f"adapter.target_modules: the regex {wanted!r} matches no module; names are such as "
                f"{example}, and end in {_some(adaptable)} (a list of endings needs brackets: "
                f"[{_nearest(wanted, adaptable) or 'q_proj'}])"
            )
    _refuse_missing("adapter.exclude_modules", config.exclude_modules, adaptable)
    _refuse_missing("adapter.modules_to_save", config.modules_to_save, list(modules))
    head = model.get_output_embeddings()
    linear = [n for n in adaptable if not isinstance(modules[n], torch.nn.Embedding) and modules[n] is not head]
    chosen = [
        name
        for name in (linear if wanted == ALL_LINEAR else adaptable)
        if wanted == ALL_LINEAR or (_named(name, wanted) if isinstance(wanted, list) else re.fullmatch(wanted, name))
    ]
    for key, names in (("exclude_modules", config.exclude_modules), ("modules_to_save", config.modules_to_save)):
        chosen = [name for name in chosen if not _named(name, names)]
        if not chosen:
            raise UserError(f"adapter.{key}: {', '.join(names)} leave no module of adapter.target_modules; name fewer")


def targets(model: PreTrainedModel, config: AdapterConfig, module: torch.nn.Module | None) -> bool:
    """True when `module` of the model gets an adapter."""
    name = next((found for found, one in model.named_modules() if one is module), None)
    if module is None or name is None or config.target_modules == ALL_LINEAR:
        return False  # it means the linear layers within the blocks, neither embeddings nor head
    if _named(name, config.exclude_modules):
        return False
    if isinstance(config.target_modules, list):
        return _named(name, config.target_modules)
    return re.fullmatch(config.target_modules, name) is not None


def saves(model: PreTrainedModel, config: AdapterConfig, module: torch.nn.Module | None) -> bool:
    """True when `module` of the model is trained whole beside the adapter."""
    name = next((found for found, one in model.named_modules() if one is module), None)
    return name is not None and _named(name, config.modules_to_save)


def _named(name: str, endings: Sequence[str]) -> bool:
    return any(name == ending or name.endswith(f".{ending}") for ending in endings)


def _is_adaptable(module: torch.nn.Module) -> bool:
    return isinstance(module, _ADAPTABLE) or type(module).__name__ == "Conv1D"  # the linear layer of GPT-2


def _refuse_missing(key: str, names: Sequence[str], there: Sequence[str]) -> None:
    missing = [name for name in names if not any(_named(full, [name]) for full in there)]
    if not missing:
        return
    near = {name: _nearest(name, there) for name in missing}
    said = ", ".join(f"{name} (did you mean {match}?)" if match else name for name, match in near.items())
    raise UserError(f"{key}: the model has no module {said}; its modules end in {_some(there)}")


def _nearest(name: str, there: Sequence[str]) -> str | None:
    ends = list(dict.fromkeys(full.rsplit(".", 1)[-1] for full in there))
    return next(iter(difflib.get_close_matches(name.rsplit(".", 1)[-1], ends, n=1)), None)


def _some(there: Sequence[str]) -> str:
    """The different last parts of names, in the model's order."""
    ends = list(dict.fromkeys(full.rsplit(".", 1)[-1] for full in there if not full.rsplit(".", 1)[-1].isdigit()))
    return ", ".join(ends[:16]) + (", ..." if len(ends) > 16 else "")
