"""Which rows each optimizer step learns from: a pure function of (seed, epoch, rows, global batch), blind to ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from toolkit.data.mixture import Mixture
from toolkit.data.permutation import permute


@dataclass(frozen=True)
class BatchPlan:
    """The global batches of a run. Every row of the mixture once per epoch; the last batch of an epoch may be short.

    Nothing is stored: a row's place in an epoch is computed on demand, so a plan over 10^8 rows weighs nothing and
    step n costs the same wherever it is. `num_rows` are the rows of one epoch, of the `mixture` where there is one.
    """

    num_rows: int
    global_batch_size: int
    seed: int
    shuffle: bool = True
    mixture: Mixture | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one pass over the rows."""
        return math.ceil(self.num_rows / self.global_batch_size)

    def total_steps(self, epochs: float, max_steps: int | None) -> int:
        """Optimizer steps of the run; max_steps overrides epochs, a part of an epoch is rounded up to whole steps."""
        return max_steps if max_steps is not None else math.ceil(round(epochs * self.steps_per_epoch, 6))

    def row_ids(self, step: int) -> np.ndarray:
        """Row ids `[<= global_batch_size]` of optimizer step `step`, counted from 0."""
        epoch, in_epoch = divmod(step, self.steps_per_epoch)
        start = in_epoch * self.global_batch_size
        places = np.arange(start, min(start + self.global_batch_size, self.num_rows))
        if self.shuffle:
            places = permute(places, self.num_rows, self.seed, epoch)
        return places if self.mixture is None else self.mixture.rows(places, epoch)

    def epoch_after(self, step: int) -> float:
        """Passes over the data when optimizer step `step` (from 0) is done: whole at the end of each epoch."""
        epoch, in_epoch = divmod(step, self.steps_per_epoch)
        return epoch + min((in_epoch + 1) * self.global_batch_size, self.num_rows) / self.num_rows
