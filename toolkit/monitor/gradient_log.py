"""The gradient norm of every parameter at every step, for those who ask where a curve leaves another one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from toolkit.monitor.progress import open_at

_PREFIX = "model."  # the Hugging Face model is the `model` of an `ObjectiveModule`


def names_of(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[list[str], list[int]]:
    """Names of the optimizer's parameters as in the plain Hugging Face model, and their indices in the model's order.

    module: not wrapped by DDP, before its first forward. Tied parameters have the first of their names.
    """
    places = {parameter: (place, name) for place, (name, parameter) in enumerate(module.named_parameters())}
    found = [places[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    names = [name.removeprefix(_PREFIX) for _, name in found]
    return names, sorted(range(len(found)), key=lambda index: found[index][0])


class GradientLog:
    """Writes a line for each step to gradient_norms.jsonl. On ranks other than the main one it does nothing.

    names: of the parameters, in the order in which their norms come; order: in which they are written. start: steps that
    an earlier start has made; what it wrote of later ones is cut off.
    """

    def __init__(self, path: Path, names: Sequence[str], order: Sequence[int], *, start: int, active: bool) -> None:
        self._path, self._names, self._order, self._active = path, names, order, active
        if active:
            open_at(path, start).close()

    def step(self, step: int, norms: torch.Tensor) -> None:
        """The norms `[parameters]` of an optimizer step."""
        if self._active:
            values = norms.tolist()
            entry = {"step": step, "gradient_norms": {self._names[i]: values[i] for i in self._order}}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def rewind(self, step: int) -> None:
        """Training goes on from `step`."""
        if self._active:
            open_at(self._path, step).close()
