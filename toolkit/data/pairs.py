"""Two answers to one prompt as one row: what both sides begin with, once, then the rest of the better and of the other.

The last token of the prompt begins both rests, so that each predicts its own first token. Positions go on from the shared
part in both, and neither sees the other: a side computes what it would compute alone.
"""

from __future__ import annotations

import numpy as np

from toolkit.data.fit import Piece


def join(chosen: Piece, rejected: Piece) -> Piece:
    """One row of two sides. What they share ends before the last token of the prompt that both have."""
    prompt = min(_first_learnt(chosen), _first_learnt(rejected))
    sides = chosen.input_ids[:prompt], rejected.input_ids[:prompt]
    differing = np.flatnonzero(sides[0] != sides[1])
    shared = max(0, (int(differing[0]) if len(differing) else prompt) - 1)
    ids = np.concatenate([chosen.input_ids, rejected.input_ids[shared:]])
    supervised = np.concatenate([chosen.supervised, rejected.supervised[shared:]])
    return Piece(ids, supervised, (shared, len(chosen.input_ids)))


def sides(row: Piece) -> tuple[Piece, Piece]:
    """The two sides, each with the shared part before it."""
    assert row.branches is not None
    shared, second = row.branches
    head = slice(0, shared)
    return row.part(0, second), Piece(
        np.concatenate([row.input_ids[head], row.input_ids[second:]]),
        np.concatenate([row.supervised[head], row.supervised[second:]]),
    )


def fit_pair(row: Piece, limit: int) -> tuple[Piece | None, int]:
    """A pair whose sides have at most `limit` tokens, and how many answers lost their end; None if a side learns nothing.

    The prompt is cut at its beginning, by as much in both, so that answers stay whole as long as one token of it is left; an
    answer that is too long even so loses its end.
    """
    chosen, rejected = sides(row)
    prompt = min(_first_learnt(chosen), _first_learnt(rejected))
    excess = max(len(chosen.input_ids), len(rejected.input_ids)) - limit
    start = min(max(0, excess), max(0, prompt - 1))
    cut = [side.part(start, min(len(side.input_ids), start + limit)) for side in (chosen, rejected)]
    if not all(side.learns for side in cut):
        return None, 0
    ends = sum(int(len(side.input_ids) - start > limit) for side in (chosen, rejected))
    return join(*cut), ends


def _first_learnt(side: Piece) -> int:
    learnt = np.flatnonzero(side.supervised)
    return int(learnt[0]) if len(learnt) else len(side.input_ids)
