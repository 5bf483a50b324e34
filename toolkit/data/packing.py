"""Documents laid into blocks: which piece of which document goes where. Pure functions of their lengths and a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toolkit.data.permutation import permute

# An epoch that no training run reaches: documents have an order of their own.
_EPOCH = 2**32 + 1


@dataclass(frozen=True)
class Packing:
    """Pieces of documents in the order in which they lie end to end.

    documents, starts, sizes: [pieces] number of the document, first token in it, and tokens. blocks: [blocks + 1] first
    piece of each block.
    """

    documents: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    blocks: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """[blocks] int32 tokens of each."""
        if len(self.blocks) == 1:
            return np.empty(0, np.int32)
        return np.add.reduceat(self.sizes, self.blocks[:-1]).astype(np.int32)


def pack_across(lengths: np.ndarray, size: int, seed: int) -> Packing:
    """All documents end to end in a random order, cut every `size` tokens; the last block may be shorter.

    lengths: [documents] tokens. A document that lies across a cut is in two blocks or more.
    """
    order = permute(np.arange(len(lengths)), len(lengths), seed, _EPOCH)
    ends = np.cumsum(lengths[order], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.union1d(ends[lengths[order] > 0], np.arange(size, total, size))
    starts = np.concatenate([[0], cuts[:-1]]) if len(cuts) else np.empty(0, np.int64)
    place = np.searchsorted(ends, starts, side="right")
    within = starts - (ends[place] - lengths[order][place])
    blocks = np.append(np.flatnonzero(starts % size == 0), len(starts))
    return Packing(order[place], within.astype(np.int64), (cuts - starts).astype(np.int32), blocks)


def pack_whole(lengths: np.ndarray, size: int) -> Packing:
    """Whole documents in as few blocks of at most `size` tokens as best-fit decreasing finds, at most 22 % above the fewest.

    lengths: [documents] tokens, none above `size`. The longest go first, each into the fullest block that has room for it
    (Johnson et al., "Worst-case performance bounds for simple one-dimensional packing algorithms", 1974).
    """
    assert not len(lengths) or lengths.max() <= size
    block = _best_fit(lengths, size)
    order = np.argsort(block, kind="stable")
    blocks = np.searchsorted(block[order], np.arange((block.max() + 2) if len(block) else 1))
    return Packing(order, np.zeros(len(order), np.int64), lengths[order].astype(np.int32), blocks)


def _best_fit(lengths: np.ndarray, size: int) -> np.ndarray:
    """[documents] number of the block that each goes into.

    Documents of one length, and blocks with the same room, are dealt with together: the time grows with the number of
    different lengths, not with that of documents.
    """
    chosen = np.empty(len(lengths), np.int64)
    room: dict[int, np.ndarray] = {}  # blocks by the tokens that are still free in them
    opened = 0
    order = np.argsort(-lengths, kind="stable")
    borders = np.flatnonzero(np.diff(lengths[order], prepend=-1))
    for first, last in zip(borders, [*borders[1:], len(order)], strict=True):
        length, waiting = int(lengths[order[first]]), order[first:last]
        while len(waiting):
            free = min((tokens for tokens in room if tokens >= length), default=size)
            each = free // length
            needed = -(-len(waiting) // each)
            if free in room:
                blocks = room.pop(free)
                needed, rest = min(needed, len(blocks)), blocks[needed:]
                if len(rest):
                    room[free] = rest
                blocks = blocks[:needed]
            else:
                blocks = np.arange(opened, opened + needed)
                opened += needed
            filled = np.repeat(blocks, each)[: len(waiting)]
            chosen[waiting[: len(filled)]] = filled
            counts = np.full(len(blocks), each)
            counts[-1] = len(filled) - each * (len(blocks) - 1)
            for count in np.unique(counts):
                left = free - int(count) * length
                if left:
                    room[left] = np.concatenate([room.get(left, np.empty(0, np.int64)), blocks[counts == count]])
            waiting = waiting[len(filled) :]
    return chosen
