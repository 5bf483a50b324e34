"""Each row's prompt with the answer of another row: what a model thinks of answers in general (KTO's reference point)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from toolkit.data.permutation import permute
from toolkit.data.tokens import TokenRows

_EPOCH = 2**32 + 2  # an order of its own


@dataclass(frozen=True)
class MismatchedRows(TokenRows):
    """Row i: the prompt of row i, and the answer of the row that follows it in a random order. Longer than `max_length`, the
    answer loses its end."""

    seed: int = 0
    max_length: int = 2048

    @cached_property
    def _plain(self) -> TokenRows:
        return TokenRows(self.parts)

    @cached_property
    def partners(self) -> np.ndarray:
        """[rows] whose answer each row gets, never its own."""
        order = permute(np.arange(len(self)), len(self), self.seed, _EPOCH)
        found = np.empty_like(order)
        found[order] = np.roll(order, -1)
        return found

    @cached_property
    def _prompts(self) -> np.ndarray:
        """[rows] tokens before the first that is learnt."""
        found = []
        for store, rows in self.parts:
            learnt = np.flatnonzero(store.supervised)
            first = learnt[np.searchsorted(learnt, store.offsets[:-1])] - store.offsets[:-1]
            found.append(first if rows is None else first[rows])
        return np.concatenate(found)

    @cached_property
    def _answers(self) -> np.ndarray:
        """[rows] tokens of the answer that each row gets, before it is shortened."""
        return (self._plain.lengths - self._prompts)[self.partners]

    @cached_property
    def labels_per_row(self) -> np.ndarray:
        """[rows] int32 tokens of the answer."""
        return np.minimum(self._answers, np.maximum(1, self.max_length - self._prompts)).astype(np.int32)

    @property
    def shortened(self) -> int:
        """How many answers lose their end."""
        return int((self.labels_per_row < self._answers).sum())

    @cached_property
    def lengths(self) -> np.ndarray:
        """[rows] int32 tokens of each row."""
        return (self._prompts + self.labels_per_row).astype(np.int32)

    def ids(self, row: int) -> np.ndarray:
        """[row length] token ids."""
        partner = int(self.partners[row])
        prompt, answer = self._plain.ids(row)[: self._prompts[row]], self._plain.ids(partner)[self._prompts[partner] :]
        return np.concatenate([prompt, answer[: self.labels_per_row[row]]])

    def labels(self, row: int) -> np.ndarray:
        """[row length] token ids of the answer, -100 before it."""
        ids = self.ids(row).astype(np.int64)
        ids[: self._prompts[row]] = -100
        return ids
