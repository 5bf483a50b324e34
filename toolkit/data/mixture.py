"""How many rows of each source an epoch has, and which: pure functions of sizes, weights and the epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.data.permutation import permute
from toolkit.errors import UserError


@dataclass(frozen=True)
class Mixture:
    """An epoch takes `counts[i]` rows of source i, which has `sizes[i]`; rows of all sources are numbered through.

    A source that is taken in part or more than once is gone through in passes of its own, each in another order, and
    every epoch goes on where the last one stopped: over time all rows of a source are seen equally often.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    seed: int

    @property
    def rows_per_epoch(self) -> int:
        """Rows of one epoch."""
        return sum(self.counts)

    def rows(self, places: np.ndarray, epoch: int) -> np.ndarray:
        """The rows at `places` (0..rows_per_epoch-1) of an epoch."""
        if self.counts == self.sizes:
            return places
        found = np.empty_like(places)
        first_place, first_row = 0, 0
        for number, (size, count) in enumerate(zip(self.sizes, self.counts, strict=True)):
            mine = (places >= first_place) & (places < first_place + count)
            position = places[mine] - first_place + np.int64(epoch) * count
            found[mine] = first_row + self._in_passes(position, size, number)
            first_place, first_row = first_place + count, first_row + size
        return found

    def _in_passes(self, position: np.ndarray, size: int, number: int) -> np.ndarray:
        """Rows of source `number` at these positions of an endless sequence of passes over it."""
        rows = np.empty_like(position)
        for turn in np.unique(position // size):
            mine = position // size == turn
            # A seed of its own, so that two sources of one size are not gone through in step.
            rows[mine] = permute(position[mine] % size, size, self.seed + 7919 * (number + 1), int(turn))
        return rows


def rows_per_epoch(sizes: Sequence[int], weights: Sequence[float | None], repeats: Sequence[float | None]) -> list[int]:
    """Rows that an epoch takes of each source.

    With weights, rows are in the proportion of the weights (1 where none is given). The source with the most rows for
    its weight is seen once, so that no row is left out; the others are repeated. With repeats, a source is taken that
    many times (1 where none is given). Raises `UserError` where both are used.
    """
    if any(w is not None for w in weights) and any(r is not None for r in repeats):
        raise UserError("data.train: weight and repeat are both used; weights set the proportions, repeats the passes")
    if all(w is None for w in weights):
        return [max(1, round(size * (repeat or 1.0))) for size, repeat in zip(sizes, repeats, strict=True)]
    given = [1.0 if w is None else w for w in weights]
    per_weight = max(size / weight for size, weight in zip(sizes, given, strict=True))
    return [max(1, round(per_weight * weight)) for weight in given]
