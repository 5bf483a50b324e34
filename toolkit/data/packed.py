"""Blocks of documents as rows: what pretraining learns from. Nothing is copied; a block is put together when it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from toolkit.data.packing import Packing, pack_across, pack_whole
from toolkit.data.tokens import Piece, TokenRows


@dataclass(frozen=True)
class PackedRows(TokenRows):
    """`parts` are documents; row i is block i. Blocks do not mix parts.

    packings: of each part. isolated: documents in a block do not see each other, so the first token of each is not learnt;
    else the block is one text.
    """

    packings: tuple[Packing, ...] = ()
    isolated: bool = True
    _documents: TokenRows = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_documents", TokenRows(self.parts))

    @cached_property
    def starts(self) -> np.ndarray:
        """[parts + 1] number of the first block of each part."""
        return np.cumsum([0, *(len(packing.blocks) - 1 for packing in self.packings)])

    @cached_property
    def lengths(self) -> np.ndarray:
        """[blocks] int32 tokens of each block."""
        return np.concatenate([packing.lengths for packing in self.packings])

    @cached_property
    def labels_per_row(self) -> np.ndarray:
        """[blocks] int32 tokens that are learnt in each block: all but the first, of each piece or of the block."""
        pieces = np.concatenate([np.diff(packing.blocks) for packing in self.packings])
        return (self.lengths - (pieces if self.isolated else 1)).astype(np.int32)

    @cached_property
    def values(self) -> np.ndarray:
        """[blocks] NaN: blocks are not judged."""
        return np.full(len(self), np.nan, np.float32)

    def _pieces(self, row: int) -> list[tuple[int, int, int]]:
        """(document, first token in it, tokens) of a block."""
        part = int(np.searchsorted(self.starts, row, side="right")) - 1
        packing, block = self.packings[part], int(row) - int(self.starts[part])
        before = int(self._documents.starts[part])
        chosen = slice(int(packing.blocks[block]), int(packing.blocks[block + 1]))
        found = zip(packing.documents[chosen], packing.starts[chosen], packing.sizes[chosen], strict=True)
        return [(before + int(document), int(start), int(size)) for document, start, size in found]

    def ids(self, row: int) -> np.ndarray:
        """[block length] token ids."""
        return np.concatenate([self._documents.ids(d)[start : start + n] for d, start, n in self._pieces(row)])

    def labels(self, row: int) -> np.ndarray:
        """[block length] token ids where learnt, -100 elsewhere."""
        return np.concatenate([labels for _, labels in self.pieces(row)])

    def pieces(self, row: int) -> list[Piece]:
        """The block's pieces of documents, or the block as one."""
        if not self.isolated:
            return [_learnt(self.ids(row))]
        return [_learnt(self._documents.ids(d)[start : start + n]) for d, start, n in self._pieces(row)]

    def branches(self, row: int) -> tuple[int, int] | None:
        """None: a block is no pair."""
        return None

    def origin(self, row: int) -> str:
        """`FILE:LINE` of the document that a block begins with."""
        return self._documents.origin(self._pieces(row)[0][0])

    def place(self, row: int) -> tuple[int, int, int]:
        """(part, file, line) of the document that a block begins with."""
        return self._documents.place(self._pieces(row)[0][0])

    def select(self, row_ids: np.ndarray) -> TokenRows:
        """Not of blocks: what is held out is held out of documents, before they are packed."""
        raise NotImplementedError


def _learnt(ids: np.ndarray) -> Piece:
    labels = ids.astype(np.int64)
    labels[:1] = -100
    return ids, labels


def pack(
    documents: TokenRows,
    *,
    size: int,
    how: Literal["across", "whole"],
    isolated: bool,
    seed: int,
    note: Callable[[str], None],
) -> PackedRows:
    """`documents` in blocks of at most `size` tokens, and a line that says what came of it."""
    starts = documents.starts
    lengths = [documents.lengths[first:last] for first, last in pairwise(starts)]
    packings = [
        pack_across(part, size, seed + number) if how == "across" else pack_whole(part, size)
        for number, part in enumerate(lengths)
    ]
    rows = PackedRows(documents.parts, packings=tuple(packings), isolated=isolated)
    pieces = sum(len(packing.documents) for packing in packings)
    cut = "" if how == "whole" else f", {pieces - int((documents.lengths > 0).sum()):,} cuts inside documents"
    seen = "do not see each other" if isolated else "see those before them in their block"
    note(
        f"packing {how}: {len(documents):,} documents in {len(rows):,} blocks of up to {size:,} tokens "
        f"({rows.tokens / (len(rows) * size):.1%} full{cut}); documents {seen}; {rows.tokens - rows.label_tokens:,} tokens "
        "have nothing before them and are not learnt"
    )
    return rows
