"""Is the base that an adapter is put on the one that it was trained on? A path says where weights lie, not which they are."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from peft import PeftModel

from toolkit.errors import UserError

FILE = "base_marks.json"
_TENSORS, _VALUES = 96, 4
# What rounding to 16 bits may do to a value.
_RELATIVE, _ABSOLUTE = 2e-2, 1e-5
_WRAPPERS = (".base_layer", ".original_module", ".token_adapter")


Marks = dict[str, list[tuple[int, float]]]  # of tensors, by name: (place, value) of a few of their numbers


def marks_of(model: PeftModel, *, moved: bool = False) -> Marks:
    """A few values of up to 96 of the frozen tensors, by the base's names. moved: those with an adapter are left out, since
    they are not as they were read. Quantized tensors say nothing of this kind and are left out too."""
    frozen = {
        name: parameter
        for name, parameter in model.get_base_model().named_parameters()
        if not parameter.requires_grad
        and type(parameter) is torch.nn.Parameter
        and parameter.is_floating_point()
        and not (moved and ".base_layer" in name)
    }
    names = sorted(frozen)
    step = max(1, -(-len(names) // _TENSORS))
    return {_plain(name): _mark(frozen[name].detach().flatten()) for name in names[::step]}


def write_marks(marks: Marks, folder: Path) -> None:
    """Beside the adapter; peft does not mind."""
    (folder / FILE).write_text(json.dumps(marks) + "\n", encoding="utf-8")


def fault(model: PeftModel, folder: Path) -> str | None:
    """What speaks against the base of `model` being that of the adapter in `folder`; None where nothing does, or where the
    folder does not say."""
    if not (folder / FILE).is_file():
        return None
    try:
        known = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{folder / FILE} cannot be read; without that file the base is not checked") from None
    here = {_plain(name): p for name, p in model.get_base_model().named_parameters()}
    differing = [name for name, mark in known.items() if not _equal(mark, here.get(name))]
    if not differing:
        return None
    return f"{len(differing)} of {len(known)} tensors that were compared are others, the first: {differing[0]}"


def check_base(model: PeftModel, folder: Path) -> None:
    """Raises UserError unless the base of `model` has the weights that the adapter in `folder` was trained on."""
    found = fault(model, folder)
    if found is not None:
        name = next(iter(model.peft_config.values())).base_model_name_or_path
        raise UserError(
            f"{folder}: the base model at {name} is not the one that this adapter was trained on: {found}; put the old weights "
            "back there"
        )


def _plain(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _mark(values: torch.Tensor) -> list[tuple[int, float]]:
    """From the first half: rows of new tokens come last, and the first row may be that of padding, all zero."""
    places = [values.numel() * part // (2 * _VALUES + 1) for part in range(1, _VALUES + 1)]
    return [(place, float(values[place])) for place in places]


def _equal(mark: list[tuple[int, float]], tensor: torch.Tensor | None) -> bool:
    if tensor is None:
        return False
    if type(tensor) is not torch.nn.Parameter or not tensor.is_floating_point():
        return True  # quantized here
    values = tensor.detach().flatten()
    return all(
        place < values.numel()
        and abs(value - float(values[place])) <= _RELATIVE * max(abs(value), abs(float(values[place]))) + _ABSOLUTE
        for place, value in mark
    )
