"""Rows longer than `data.max_length`: cut, split or dropped, so that no row teaches a text that stops half-way unseen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

# Bytes of the longest UTF-8 character: as many byte-level tokens may be left over where a character is cut.
_CHARACTER = 4


@dataclass(frozen=True)
class Piece:
    """A row, or a part of it. input_ids: [tokens] int32; supervised: [tokens] bool.

    branches: of a pair of answers, where each begins; see `pairs`. value: of an answer that is judged; else NaN.
    """

    input_ids: np.ndarray
    supervised: np.ndarray
    branches: tuple[int, int] | None = None
    value: float = np.nan

    @property
    def learns(self) -> bool:
        """True if anything in it is learnt; nothing predicts the first token."""
        return bool(self.supervised[1:].any())

    def part(self, start: int, end: int) -> Piece:
        """Tokens start..end-1; its first token is not learnt."""
        supervised = self.supervised[start:end].copy()
        supervised[:1] = False
        return Piece(self.input_ids[start:end], supervised, value=self.value)


@dataclass(frozen=True)
class Fitted:
    """The pieces that a row becomes; none if nothing of it can be learnt.

    answers_cut: answers that lost their end. answers_lost: answers that are not in any piece.
    """

    pieces: list[Piece]
    answers_cut: int = 0
    answers_lost: int = 0


def truncate(row: Piece, limit: int, tokenizer: PreTrainedTokenizerBase, controls: np.ndarray) -> Fitted:
    """The first `limit` tokens at most, ending where something is learnt and not inside a character or a turn's end.

    `controls`: ids of the added tokens. What follows the last learnt token teaches nothing and goes as well.
    """
    starts, ends = _answers(row.supervised)
    end = _whole_end(row, limit, tokenizer, controls)
    learnt = np.flatnonzero(row.supervised[:end])
    end = int(learnt[-1]) + 1 if len(learnt) else 0
    inside = (starts < end) & (ends > end)
    lost = int((starts >= end).sum())
    piece = row.part(0, end)
    if not piece.learns:
        return Fitted([], 0, len(starts))
    return Fitted([piece], int(inside.sum()), lost)


def split(row: Piece, limit: int, tokenizer: PreTrainedTokenizerBase, controls: np.ndarray) -> Fitted:
    """The row in pieces of at most `limit` tokens, none of which begins inside an answer, unless all is learnt.

    A text that is learnt whole is cut where it is full. A conversation is cut after an answer; of an answer that does
    not fit, the end is lost and counted.
    """
    size = len(row.input_ids)
    if row.supervised[1:].all():
        cuts = [0]
        while size - cuts[-1] > limit:
            cuts.append(max(cuts[-1] + 1, _whole_end(row.part(cuts[-1], size), limit, tokenizer, controls) + cuts[-1]))
        pieces = [row.part(start, end) for start, end in zip(cuts, [*cuts[1:], size], strict=True)]
        return Fitted([piece for piece in pieces if piece.learns])
    _, ends = _answers(row.supervised)
    pieces, start, cut, lost = [], 0, 0, 0
    while start < size:
        rest = row.part(start, size)
        if size - start <= limit:
            pieces += [rest] if rest.learns else []
            break
        fitting = ends[(ends > start) & (ends <= start + limit)]
        if len(fitting):
            pieces.append(row.part(start, int(fitting[-1])))
            start = int(fitting[-1])
            continue
        following = ends[ends > start]
        if not len(following):
            break
        shortened = truncate(row.part(start, int(following[0])), limit, tokenizer, controls)
        pieces, cut = pieces + shortened.pieces, cut + shortened.answers_cut
        lost += 0 if shortened.pieces else 1
        start = int(following[0])
    return Fitted(pieces, cut, lost)


def _answers(supervised: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First token of each run that is learnt, and the one after its last."""
    edges = np.diff(np.concatenate([[0], supervised.astype(np.int8), [0]]))
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)


def _whole_end(row: Piece, limit: int, tokenizer: PreTrainedTokenizerBase, controls: np.ndarray) -> int:
    """The last place at or before `limit` that cuts no character and no run of control tokens in two."""
    end = limit
    if end >= len(row.input_ids):
        return len(row.input_ids)
    is_control = np.isin(row.input_ids[: end + 1], controls)
    while end > 1 and is_control[end] and is_control[end - 1] and row.supervised[end] and row.supervised[end - 1]:
        end -= 1
    for shorter in range(end, max(end - _CHARACTER, 0), -1):
        tail = tokenizer.decode(row.input_ids[max(0, shorter - _CHARACTER) : shorter].tolist())
        if not str(tail).endswith("\ufffd"):
            return shorter
    return end
