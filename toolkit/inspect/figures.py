"""The figures of a part: how many rows and tokens, how long, how much of it is supervised, and the rows at the ends."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from toolkit.data.examples import Chat, Completion, Text
from toolkit.inspect.collect import Collected, Part, Source, SourceAccount
from toolkit.inspect.scan import Scan, runs

FEW_SUPERVISED = 3
_SHOWN = 5
_MOST_BINS = 40
_NEAR = 0.9
_EXCERPT = 200
_EXCERPT_TOKENS = 120


@dataclass(frozen=True)
class Bin:
    """Rows of `start` to `end` - 1 tokens; `end` None: and all that are longer."""

    start: int
    end: int | None
    rows: int


@dataclass(frozen=True)
class Lengths:
    """Tokens a row. A percentile is the least length that so many rows do not exceed.

    near_limit: rows of at least 90 % of data.max_length, those at it included; at_limit: rows of exactly that many.
    """

    mean: float
    p50: int
    p90: int
    p99: int
    longest: int
    max_length: int
    near_limit: int
    at_limit: int
    bins: list[Bin]


@dataclass(frozen=True)
class RowFigures:
    """One row in a list: where it is from, its size, and the beginnings of its prompt and of what is learnt."""

    place: str
    tokens: int
    supervised: int
    prompt: str
    answer: str


@dataclass(frozen=True)
class FirstWord:
    """How many answers begin with a word."""

    word: str
    rows: int


@dataclass(frozen=True)
class Figures:
    """All figures of the training or the evaluation rows. few_supervised: rows with at most FEW_SUPERVISED to learn."""

    rows: int
    tokens: int
    supervised: int
    supervised_share: float
    lengths: Lengths
    longest: list[RowFigures]
    shortest: list[RowFigures]
    few_supervised: int
    fewest: list[RowFigures]
    first_words: list[FirstWord]


@dataclass(frozen=True)
class SourceFigures:
    """One source of the training rows. mixture: its share of all training tokens."""

    name: str
    rows: int
    tokens: int
    supervised: int
    supervised_share: float
    mixture: float
    account: SourceAccount | None


def figures(data: Collected, part: Part, found: Scan) -> Figures:
    """The figures of one part from one pass over it."""
    tokens, supervised = int(found.lengths.sum()), int(found.supervised.sum())
    by_length = np.argsort(found.lengths, kind="stable")
    few = np.flatnonzero(found.supervised <= FEW_SUPERVISED)
    fewest = few[np.argsort(found.supervised[few], kind="stable")][:_SHOWN]
    from_longest = np.argsort(-found.lengths, kind="stable")

    def list_of(rows: np.ndarray) -> list[RowFigures]:
        return [row_figures(data, part, found, row) for row in rows.tolist()]

    return Figures(
        rows=len(part.rows),
        tokens=tokens,
        supervised=supervised,
        supervised_share=supervised / tokens if tokens else 0.0,
        lengths=lengths(found.lengths, data.max_length),
        longest=list_of(from_longest[:_SHOWN]),
        shortest=list_of(by_length[:_SHOWN]),
        few_supervised=len(few),
        fewest=list_of(fewest),
        first_words=[FirstWord(word, count) for word, count in found.first_words.most_common(12)],
    )


def source_figures(sources: list[Source], found: Scan) -> list[SourceFigures]:
    """A line for each source of the training rows."""
    total, result = int(found.lengths.sum()), []
    for source in sources:
        rows = slice(source.first, source.last)
        tokens, supervised = int(found.lengths[rows].sum()), int(found.supervised[rows].sum())
        share = supervised / tokens if tokens else 0.0
        mixture = tokens / total if total else 0.0
        count = source.last - source.first
        result.append(SourceFigures(source.name, count, tokens, supervised, share, mixture, source.account))
    return result


def total_account(accounts: list[SourceAccount]) -> SourceAccount:
    """The accounts of several sources in one."""
    dropped: Counter[str] = Counter()
    for account in accounts:
        dropped.update(account.dropped)
    return SourceAccount(
        read=sum(a.read for a in accounts),
        whole=sum(a.whole for a in accounts),
        truncated=sum(a.truncated for a in accounts),
        split=sum(a.split for a in accounts),
        dropped=dict(dropped.most_common()),
        answers_cut=sum(a.answers_cut for a in accounts),
    )


def lengths(tokens: np.ndarray, max_length: int) -> Lengths:
    """Percentiles and histogram of row lengths [rows]; all zero where there are none."""
    if len(tokens) == 0:
        return Lengths(0.0, 0, 0, 0, 0, max_length, 0, 0, [])
    p50, p90, p99 = (int(v) for v in np.percentile(tokens, [50, 90, 99], method="inverted_cdf"))
    return Lengths(
        mean=float(tokens.mean()),
        p50=p50,
        p90=p90,
        p99=p99,
        longest=int(tokens.max()),
        max_length=max_length,
        near_limit=int((tokens >= math.ceil(_NEAR * max_length)).sum()),
        at_limit=int((tokens == max_length).sum()),
        bins=histogram(tokens, p99),
    )


def histogram(tokens: np.ndarray, p99: int) -> list[Bin]:
    """At most 40 bins of a round width. One row far out does not flatten the rest: beyond twice p99 one bin takes all."""
    longest = int(tokens.max())
    far = longest > 3 * p99
    top = 2 * p99 if far else longest
    width = _round_width(top / _MOST_BINS)
    count = top // width + 1
    edges = np.arange(count + 1) * width
    inside = np.bincount(np.minimum(tokens // width, count), minlength=count + 1)
    bins = [Bin(int(edges[i]), int(edges[i + 1]), int(inside[i])) for i in range(count)]
    return [*bins, Bin(int(edges[count]), None, int(inside[count]))] if inside[count] else bins


def row_figures(data: Collected, part: Part, found: Scan, row: int) -> RowFigures:
    """Size, place and excerpts of one row."""
    prompt, answer = excerpts(data, part, row)
    return RowFigures(part.place(row), int(found.lengths[row]), int(found.supervised[row]), prompt, answer)


def excerpts(data: Collected, part: Part, row: int) -> tuple[str, str]:
    """The beginnings of what one row asks and of what it teaches, on one line each; "" where there is no prompt."""
    ids, mask = part.rows.ids(row), part.rows.labels(row) != -100
    start, end = next(runs(mask), (len(ids), len(ids)))
    example = part.example(row)
    before, learnt = ids[max(0, start - _EXCERPT_TOKENS) : start], ids[start : min(end, start + _EXCERPT_TOKENS)]
    if isinstance(example, Text) or start <= 1:  # nothing predicts the first token, which makes it no prompt
        before, learnt = ids[:0], ids[:_EXCERPT_TOKENS]
    texts = data.decode([[i for i in part_ids.tolist() if i not in data.special] for part_ids in (before, learnt)])
    prompt = texts[0]
    if isinstance(example, Completion):
        prompt = example.prompt
    elif isinstance(example, Chat):
        prompt = next((str(m["content"]) for m in example.messages if m["role"] == "user"), prompt)
    return _one_line(prompt), _one_line(texts[1])


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _EXCERPT else text[: _EXCERPT - 1] + "…"


def _round_width(least: float) -> int:
    """The least of 1, 2, 5, 10, 20, 50, ... that is not below `least`."""
    power = 10 ** max(0, math.floor(math.log10(max(least, 1))))
    return next(width for width in (power, 2 * power, 5 * power, 10 * power) if width >= least)
