"""Is a merged model the model that was trained? Logits on real rows say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.utils._pytree import tree_map
from transformers import PreTrainedModel

# How far logits may be apart, relative to the largest: rounding of weights and of products in this precision.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
# An int8 base also rounds what goes into its products, and computes them in fp16; a merged model does neither.
INT8_TOLERANCE = 1e-1
_TOKENS = 256  # of a row
_POSITIONS = 24  # of a row, since logits of all would be large


@dataclass(frozen=True)
class Proof:
    """Distances between the logits of three models on the same rows: max |a - b| / max |trained|.

    trained_base: what training changed. merged_trained: what merging lost. merged_base: what is left of the training.
    """

    trained_base: float
    merged_trained: float
    merged_base: float
    tolerance: float

    @property
    def fault(self) -> str | None:
        """Why the merged model is not the trained one; None if it is."""
        if not self.trained_base > 0:
            return "the adapter changes nothing: the trained model gives the logits of its base"
        if not self.merged_trained <= self.tolerance:
            return (
                f"the merged model is {self.merged_trained:.1e} from the trained one, more than the {self.tolerance:.0e} "
                "that rounding explains"
            )
        if not self.merged_trained < self.merged_base:
            return (
                "the merged model is nearer to the base than to the trained model: this dtype rounds away what was learned; "
                "merge with --dtype float32"
            )
        return None


@torch.no_grad()
def logits(model: PreTrainedModel, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Of positions all over each row, the last among them: `[positions of all rows, vocabulary]`, fp32.

    Computed in fp32 whatever the weights are held in: rounding on the way through the layers would hide theirs.
    """
    found = []
    with _in_fp32(model):
        for row in rows:
            ids = torch.tensor([list(row)[:_TOKENS]])
            places = torch.linspace(0, ids.shape[1] - 1, min(_POSITIONS, ids.shape[1])).round().long()
            found.append(model(input_ids=ids, use_cache=False).logits[0, places].float())
    return torch.cat(found)


@contextmanager
def _in_fp32(model: torch.nn.Module) -> Iterator[None]:
    """Weights are widened where they are used, one layer at a time, so that no second model is in memory."""
    hooks, inside = [], set()
    for module in model.modules():
        wide = isinstance(module, BaseTunerLayer) or any(True for _ in module.parameters(recurse=False))
        if not wide or module in inside:
            continue
        inside |= set(module.modules())  # an adapter's layer also reads the weights of the layer in it
        narrow: _Narrow = {}
        hooks.append(module.register_forward_pre_hook(partial(_widen, narrow), with_kwargs=True))
        hooks.append(module.register_forward_hook(partial(_restore, narrow)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


_Narrow = dict[torch.nn.Parameter, torch.Tensor]  # weights as they were, while wide ones stand in for them


def _widen(narrow: _Narrow, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    for parameter in module.parameters():
        # Of a class of its own it is quantized: its numbers are storage.
        if type(parameter) is torch.nn.Parameter and parameter.dtype in (torch.bfloat16, torch.float16):
            narrow[parameter] = parameter.data
            parameter.data = parameter.data.float()
    return tree_map(_widened, args), tree_map(_widened, kwargs)


def _restore(narrow: _Narrow, module: torch.nn.Module, args: Any, output: Any) -> None:
    for parameter in list(narrow):
        parameter.data = narrow.pop(parameter)


def _widened(value: Any) -> Any:
    return (
        value.float() if isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16) else value
    )


def prove(base: torch.Tensor, trained: torch.Tensor, merged: torch.Tensor, tolerance: float) -> Proof:
    """Compare the logits of the three. Rows of the vocabulary that a model lacks are not compared."""

    def distance(one: torch.Tensor, other: torch.Tensor) -> float:
        rows = min(one.shape[1], other.shape[1])
        apart = (one[:, :rows] - other[:, :rows]).abs().max() / trained.abs().max()
        return float(apart)

    return Proof(distance(trained, base), distance(merged, trained), distance(merged, base), tolerance)
