"""Objectives: one file a loss family. An objective turns a model and a micro-batch into a loss *sum* and its *weight*.

It never averages: the loop divides by the weight of the whole global batch, over all ranks and micro-batches, and that is
why the result does not depend on how the batch was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from transformers import PreTrainedModel

from toolkit.data.collate import MicroBatch


class ObjectiveOutput(NamedTuple):
    """What an objective returns for one micro-batch.

    loss_sum: [] unnormalised, connected to the graph, also when there is nothing to learn (then zero).
    weight: what loss_sum would be divided by (labelled tokens, pairs, ...), zero for a filler.
    metrics: further sums, without gradients: [] over the same weight, or [2] with a weight of their own.
    """

    # A named tuple, not a dataclass: FSDP2 looks for tensors in a module's output and only opens containers it knows.
    loss_sum: torch.Tensor
    weight: torch.Tensor
    metrics: dict[str, torch.Tensor]


def mean(total: Sequence[float], weight: float) -> float:
    """Of a metric's sums over all ranks and micro-batches; `weight`: that of the loss. 0 where nothing weighs anything."""
    own = total[1] if len(total) == 2 else weight
    return total[0] / own if own else 0.0


class Objective(Protocol):
    """A loss family.

    unit: what its weight counts, in the plural ("tokens", "pairs"). perplexity: whether the exponential of its loss is one.
    """

    unit: str
    perplexity: bool

    def __call__(self, model: PreTrainedModel, batch: MicroBatch) -> ObjectiveOutput:
        """Compute the loss sum of one micro-batch inside the wrapped module's forward."""
        ...


class Looking(Objective, Protocol):
    """An objective whose loss of a row depends on other rows of the global batch.

    It looks at all of them first, without gradients; what it saw comes with each micro-batch as `batch.known.seen`.
    """

    def look(self, model: PreTrainedModel, batch: MicroBatch) -> torch.Tensor:
        """[rows of the batch, any number], of a filler [0, the same number]."""
        ...


class ObjectiveModule(torch.nn.Module):
    """A model and its objective as one module, which is what DDP or FSDP wraps.

    The loss belongs inside the wrapped forward: there FSDP has the vocabulary matrix gathered, and autocast is on.
    """

    def __init__(self, model: PreTrainedModel, objective: Objective, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        # None where the layout's wrapper brings its own.
        self.autocast = autocast
        # What accelerate looks for on a model that it shards layer by layer.
        self._no_split_modules = model._no_split_modules

    def forward(self, batch: MicroBatch, looking: bool = False) -> Any:
        """`ObjectiveOutput`; while `looking`, the tensor that the objective's `look` gives."""
        compute = cast(Looking, self.objective).look if looking else self.objective
        if self.autocast is None:
            return compute(self.model, batch)
        with torch.autocast(batch.input_ids.device.type, self.autocast):
            return compute(self.model, batch)

    def tie_weights(self) -> None:
        """Tie embeddings and head again after parameters were replaced."""
        self.model.tie_weights()
