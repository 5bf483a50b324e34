"""All rows of a data set as token ids and a label mask, end to end in three arrays: no Python object per row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TokenRows:
    """Tokenized rows.

    input_ids: [tokens] int32; supervised: [tokens] bool, False for the first token of a row, which nothing predicts.
    offsets: [rows + 1] int64; row i is input_ids[offsets[i]:offsets[i + 1]].
    """

    input_ids: np.ndarray
    supervised: np.ndarray
    offsets: np.ndarray

    @staticmethod
    def build(rows: Iterable[tuple[list[int], list[int]]]) -> TokenRows:
        """From (input_ids, labels) pairs, where labels are -100 or equal to the input id."""
        flat: list[np.ndarray] = []
        masks: list[np.ndarray] = []
        lengths = [0]
        for input_ids, labels in rows:
            flat.append(np.asarray(input_ids, dtype=np.int32))
            mask = np.asarray(labels) != -100
            mask[0] = False
            masks.append(mask)
            lengths.append(len(input_ids))
        ids = np.concatenate(flat) if flat else np.empty(0, np.int32)
        supervised = np.concatenate(masks) if masks else np.empty(0, bool)
        return TokenRows(ids, supervised, np.cumsum(lengths, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """[rows] tokens of each row."""
        return np.diff(self.offsets)

    @property
    def label_tokens(self) -> int:
        """Supervised tokens of all rows."""
        return int(self.supervised.sum())

    def ids(self, row: int) -> np.ndarray:
        """[row length] token ids."""
        return self.input_ids[self.offsets[row] : self.offsets[row + 1]]

    def labels(self, row: int) -> np.ndarray:
        """[row length] token ids where supervised, -100 elsewhere."""
        part = slice(self.offsets[row], self.offsets[row + 1])
        return np.where(self.supervised[part], self.input_ids[part], -100)

    def select(self, row_ids: np.ndarray) -> TokenRows:
        """The given rows, in that order."""
        return TokenRows.build((self.ids(i).tolist(), self.labels(i).tolist()) for i in row_ids)
