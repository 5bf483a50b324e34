"""Rows that say the same: repeats within the training rows, and evaluation rows that training has seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toolkit.inspect.collect import Collected, Part
from toolkit.inspect.figures import excerpts
from toolkit.inspect.scan import Scan, groups

_EXAMPLES = 5
_PLACES = 6


@dataclass(frozen=True)
class Repeated:
    """Rows of one text: how many training rows, where the first of them are, where it is in the evaluation rows, and
    its excerpts."""

    rows: int
    places: list[str]
    eval_places: list[str]
    prompt: str
    answer: str


@dataclass(frozen=True)
class Repeats:
    """Texts count as the same when they differ in Unicode form, case or white space at most.

    duplicate_rows: training rows that repeat an earlier one, in `duplicate_groups` different texts. rival_rows:
    training rows whose prompt has a different answer elsewhere, in `rival_groups` prompts. overlap_rows: evaluation rows
    whose whole text is also trained on; overlap_prompts: evaluation rows whose prompt is, with whatever answer.
    """

    duplicate_rows: int
    duplicate_groups: int
    duplicates: list[Repeated]
    rival_rows: int
    rival_groups: int
    rivals: list[Repeated]
    overlap_rows: int
    overlap_prompts: int
    overlaps: list[Repeated]
    prompt_overlaps: list[Repeated]


def repeats(data: Collected, train: Scan, held_out: Scan | None) -> Repeats:
    """Find and count all repeats; the most frequent ones are given as examples."""
    text = groups(train.texts)
    size = np.bincount(text) if len(text) else np.empty(0, np.int64)
    repeated = np.flatnonzero(size > 1)
    rival_rows, rival_groups, rivals = _rivals(data, train, text)
    whole: tuple[int, list[Repeated]] = (0, [])
    prompts: tuple[int, list[Repeated]] = (0, [])
    if held_out is not None and data.eval is not None:
        everything, nothing = np.ones(len(train.texts), bool), np.ones(len(held_out.texts), bool)
        whole = _overlap(data, data.eval, train.texts, everything, held_out.texts, nothing)
        prompts = _overlap(data, data.eval, train.prompts, train.has_prompt, held_out.prompts, held_out.has_prompt)
    return Repeats(
        duplicate_rows=int((size[repeated] - 1).sum()),
        duplicate_groups=len(repeated),
        duplicates=_examples(data, text, repeated, size),
        rival_rows=rival_rows,
        rival_groups=rival_groups,
        rivals=rivals,
        overlap_rows=whole[0],
        overlap_prompts=prompts[0],
        overlaps=whole[1],
        prompt_overlaps=prompts[1],
    )


def _examples(data: Collected, group: np.ndarray, chosen: np.ndarray, size: np.ndarray) -> list[Repeated]:
    """The largest of the chosen groups of training rows."""
    result = []
    for number in chosen[np.argsort(-size[chosen], kind="stable")][:_EXAMPLES].tolist():
        rows = np.flatnonzero(group == number)
        places = [data.train.place(row) for row in rows[:_PLACES].tolist()]
        result.append(Repeated(len(rows), places, [], *excerpts(data, data.train, int(rows[0]))))
    return result


def _rivals(data: Collected, train: Scan, text: np.ndarray) -> tuple[int, int, list[Repeated]]:
    """Rows of the same prompt that differ as a whole."""
    rows = np.flatnonzero(train.has_prompt)
    if len(rows) == 0:
        return 0, 0, []
    prompt = np.full(len(text), -1, np.int64)
    prompt[rows] = groups(train.prompts[rows])
    # One line for each (prompt, text) there is; a prompt that has two lines has two answers.
    pairs = np.unique(np.stack([prompt[rows], text[rows]], axis=1), axis=0)
    answers = np.bincount(pairs[:, 0])
    chosen = np.flatnonzero(answers > 1)
    size = np.bincount(prompt[rows])
    return int(size[chosen].sum()), len(chosen), _examples(data, prompt, chosen, size)


def _overlap(
    data: Collected, part: Part, ours: np.ndarray, use_ours: np.ndarray, theirs: np.ndarray, use_theirs: np.ndarray
) -> tuple[int, list[Repeated]]:
    """How many evaluation rows have a digest that occurs among the training rows', and examples."""
    train_rows, eval_rows = np.flatnonzero(use_ours), np.flatnonzero(use_theirs)
    number = groups(np.concatenate([ours[train_rows], theirs[eval_rows]]))
    in_train, in_eval = number[: len(train_rows)], number[len(train_rows) :]
    hit = np.isin(in_eval, in_train)
    examples = []
    for row, group in zip(eval_rows[hit][:_EXAMPLES].tolist(), in_eval[hit][:_EXAMPLES].tolist(), strict=True):
        same = train_rows[in_train == group]
        places = [data.train.place(r) for r in same[:_PLACES].tolist()]
        examples.append(Repeated(len(same), places, [part.place(row)], *excerpts(data, data.train, int(same[0]))))
    return int(hit.sum()), examples
