"""Which rows each optimizer step learns from: a pure function of (seed, epoch, rows, global batch), blind to ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

_ROUNDS = 8


@dataclass(frozen=True)
class BatchPlan:
    """The global batches of a run. Every row once per epoch; the last batch of an epoch may be short.

    Nothing is stored: a row's place in an epoch is computed on demand, so a plan over 10^8 rows weighs nothing and
    step n costs the same wherever it is.
    """

    num_rows: int
    global_batch_size: int
    seed: int
    shuffle: bool = True

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
        return permute(places, self.num_rows, self.seed, epoch) if self.shuffle else places

    def epoch_after(self, step: int) -> float:
        """Passes over the data when optimizer step `step` (from 0) is done: whole at the end of each epoch."""
        epoch, in_epoch = divmod(step, self.steps_per_epoch)
        return epoch + min((in_epoch + 1) * self.global_batch_size, self.num_rows) / self.num_rows


def permute(places: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """The rows at `places` of a pseudo-random permutation of `range(size)`, in O(len(places)).

    A balanced Feistel network over the next power of four, walked until the value lands below `size` (cycle walking;
    Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Integer arithmetic only: the order does not
    depend on a library's version.
    """
    half = np.uint64(max(1, math.ceil(math.log2(max(size, 2)) / 2)))
    low = np.uint64((1 << int(half)) - 1)
    keys = [
        _mix(np.uint64((seed * 0x9E3779B97F4A7C15 + epoch * 0xD1B54A32D192ED03 + r) % 2**64)) for r in range(_ROUNDS)
    ]

    def encrypt(values: np.ndarray) -> np.ndarray:
        left, right = values >> half, values & low
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & low)
        return (left << half) | right

    out = encrypt(np.asarray(places).astype(np.uint64))
    outside = out >= np.uint64(size)
    while outside.any():
        out[outside] = encrypt(out[outside])
        outside = out >= np.uint64(size)
    return out.astype(np.int64)


def _mix(value: np.ndarray | np.uint64) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every output bit depends on every input bit."""
    with np.errstate(over="ignore"):
        value = np.asarray(value, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
