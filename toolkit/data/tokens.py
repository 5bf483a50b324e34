"""Rows of one or more stores as one numbered sequence: no Python object per row, however many there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from toolkit.data.store import TokenStore
from toolkit.data.teaching import Teaching

# (token ids, labels) of what attention sees as one text.
Piece = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class TokenRows:
    """Tokenized rows 0..len-1, the parts one after the other. A part is a store with the rows chosen of it (None: all).

    reference: [rows, 2] log-probabilities of both answers of each pair under the reference model, once they are known.
    teaching: a teacher's likeliest tokens, once they are known.
    """

    parts: tuple[tuple[TokenStore, np.ndarray | None], ...]
    reference: np.ndarray | None = None
    teaching: Teaching | None = None

    @staticmethod
    def of(*stores: TokenStore) -> TokenRows:
        """All rows of these stores."""
        return TokenRows(tuple((store, None) for store in stores))

    @staticmethod
    def build(
        rows: Iterable[tuple[Sequence[int], Sequence[int]]],
        branches: Sequence[tuple[int, int]] | None = None,
        values: Sequence[float] | None = None,
    ) -> TokenRows:
        """In memory, from (input_ids, labels), where labels are -100 or equal to the input id; the others as in the store."""
        pairs = [(np.asarray(ids, np.int32), np.asarray(labels) != -100) for ids, labels in rows]
        for _, mask in pairs:
            mask[:1] = False
        ids = np.concatenate([ids for ids, _ in pairs] or [np.empty(0, np.int32)])
        supervised = np.concatenate([mask for _, mask in pairs] or [np.empty(0, bool)])
        offsets = np.cumsum([0, *(len(ids) for ids, _ in pairs)], dtype=np.int64)
        labels = np.array([mask.sum() for _, mask in pairs], dtype=np.int32)
        numbers = np.arange(1, len(pairs) + 1)
        starts = np.array(branches or [(0, 0)] * len(pairs), dtype=np.int32).reshape(-1, 2)
        judged = np.full(len(pairs), np.nan, np.float32) if values is None else np.asarray(values, np.float32)
        return TokenRows.of(
            TokenStore(ids, supervised, offsets, labels, starts, judged, np.zeros(len(pairs), np.int32), numbers)
        )

    def __len__(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def starts(self) -> np.ndarray:
        """[parts + 1] number of the first row of each part."""
        return np.cumsum([0, *(len(store if rows is None else rows) for store, rows in self.parts)])

    @cached_property
    def lengths(self) -> np.ndarray:
        """[rows] int32 tokens of each row."""
        sizes = [np.diff(s.offsets) if rows is None else np.diff(s.offsets)[rows] for s, rows in self.parts]
        return np.concatenate([size.astype(np.int32) for size in sizes] or [np.empty(0, np.int32)])

    @cached_property
    def labels_per_row(self) -> np.ndarray:
        """[rows] int32 tokens that are learnt in each row."""
        counts = [np.asarray(s.labels if rows is None else s.labels[rows]) for s, rows in self.parts]
        return np.concatenate(counts or [np.empty(0, np.int32)])

    @cached_property
    def values(self) -> np.ndarray:
        """[rows] fp32 what each row is judged to be, NaN where it is not."""
        return np.concatenate(
            [np.asarray(s.values if rows is None else s.values[rows]) for s, rows in self.parts]
            or [np.empty(0, np.float32)]
        )

    @property
    def paired(self) -> bool:
        """True for pairs of answers."""
        return len(self) > 0 and self.branches(0) is not None

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return int(self.lengths.sum(dtype=np.int64))

    @property
    def label_tokens(self) -> int:
        """Tokens of all rows that are learnt."""
        return int(self.labels_per_row.sum(dtype=np.int64))

    @property
    def largest_id(self) -> int:
        """The largest token id in these stores."""
        return max(int(store.ids.max(initial=0)) for store, _ in self.parts)

    def _find(self, row: int) -> tuple[TokenStore, int]:
        part = int(np.searchsorted(self.starts, row, side="right")) - 1
        store, rows = self.parts[part]
        place = int(row) - int(self.starts[part])
        return store, place if rows is None else int(rows[place])

    def ids(self, row: int) -> np.ndarray:
        """[row length] token ids."""
        store, place = self._find(row)
        return store.ids[store.offsets[place] : store.offsets[place + 1]]

    def labels(self, row: int) -> np.ndarray:
        """[row length] token ids where supervised, -100 elsewhere."""
        store, place = self._find(row)
        part = slice(store.offsets[place], store.offsets[place + 1])
        return np.where(store.supervised[part], store.ids[part], -100)

    def pieces(self, row: int) -> list[Piece]:
        """The row as (token ids, labels), in pieces that do not see each other; one, unless rows are packed."""
        return [(self.ids(row), self.labels(row))]

    def branches(self, row: int) -> tuple[int, int] | None:
        """Where the two answers of a pair begin in the row; None for a row that is no pair."""
        store, place = self._find(row)
        first, second = (int(start) for start in store.branches[place])
        return (first, second) if second else None

    def origin(self, row: int) -> str:
        """`FILE:LINE` that a row came from."""
        store, place = self._find(row)
        return store.origin(place)

    def place(self, row: int) -> tuple[int, int, int]:
        """(part, file, line) that a row came from."""
        store, place = self._find(row)
        part = int(np.searchsorted(self.starts, row, side="right")) - 1
        return part, int(store.files[place]), int(store.lines[place])

    def select(self, row_ids: np.ndarray) -> TokenRows:
        """The given rows, which must ascend; nothing is copied."""
        parts = []
        for number, (store, rows) in enumerate(self.parts):
            first, last = self.starts[number], self.starts[number + 1]
            inside = row_ids[(row_ids >= first) & (row_ids < last)] - first
            parts.append((store, inside if rows is None else rows[inside]))
        return TokenRows(tuple(parts))

    def joined(self, other: TokenRows) -> TokenRows:
        """These rows and then the other's."""
        return TokenRows((*self.parts, *other.parts))
