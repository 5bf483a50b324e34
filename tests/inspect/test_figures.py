"""Figures against values counted by hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from tests.inspect.data import ACCOUNT, collected, letters, part, row
from toolkit.inspect.collect import Source
from toolkit.inspect.figures import figures, histogram, lengths, source_figures, total_account
from toolkit.inspect.scan import normalise, runs, scan

ROWS = [row("ab", "c"), row("abcd", "Yes it is"), row("a", "Yes no"), row("abc", "No, never", end=False), row("x", "y")]


def test_counts_shares_and_ends() -> None:
    data = collected(part(ROWS))
    found = scan(data.train.rows, data.decode, data.special)
    result = figures(data, data.train, found)
    # prompt + answer + end: 2+1+1, 4+9+1, 1+6+1, 3+9, 1+1+1
    assert found.lengths.tolist() == [4, 14, 8, 12, 3]
    assert found.supervised.tolist() == [2, 10, 7, 9, 2]
    assert (result.rows, result.tokens, result.supervised) == (5, 41, 30)
    assert result.supervised_share == pytest.approx(30 / 41)
    assert [r.tokens for r in result.longest] == [14, 12, 8, 4, 3]
    assert [r.tokens for r in result.shortest] == [3, 4, 8, 12, 14]
    assert result.longest[0].place == "/data/train.jsonl:2"
    assert (result.longest[0].prompt, result.longest[0].answer) == ("abcd", "Yes it is")
    assert result.few_supervised == 2  # at most three
    assert [r.place for r in result.fewest] == ["/data/train.jsonl:1", "/data/train.jsonl:5"]
    assert [(w.word, w.rows) for w in result.first_words] == [("Yes", 2), ("c", 1), ("No", 1), ("y", 1)]


def test_many_rows_are_scanned_in_batches_without_loss() -> None:
    rows = [row("a" * (i % 7 + 1), f"{i}") for i in range(1300)]
    found = scan(part(rows).rows, letters, frozenset())
    assert found.supervised.tolist() == [len(str(i)) + 1 for i in range(1300)]
    assert len(np.unique(found.texts, axis=0)) == 1300
    assert found.first_words.total() == 1300


def test_percentiles_are_lengths_of_rows_and_the_limit_is_counted() -> None:
    tokens = np.arange(1, 101)
    result = lengths(tokens, 100)
    assert (result.p50, result.p90, result.p99, result.longest, result.mean) == (50, 90, 99, 100, 50.5)
    assert (result.near_limit, result.at_limit) == (11, 1)  # 90 to 100
    assert lengths(np.array([7]), 10).p99 == 7
    assert lengths(np.array([9]), 10).near_limit == 1
    assert lengths(np.array([8]), 10).near_limit == 0
    assert lengths(np.empty(0, int), 10).bins == []


@pytest.mark.parametrize(
    "tokens", [np.arange(1, 1000), np.full(50, 2048), np.random.default_rng(0).lognormal(5, 1, 4000).astype(int) + 1]
)
def test_bins_hold_every_row_once_and_are_few(tokens: np.ndarray) -> None:
    p99 = int(np.percentile(tokens, 99, method="inverted_cdf"))
    bins = histogram(tokens, p99)
    assert len(bins) <= 42
    assert bins[0].start == 0
    for item, following in pairwise(bins):
        assert item.end == following.start
    for item in bins:
        high = item.end if item.end is not None else tokens.max() + 1
        assert item.rows == int(((tokens >= item.start) & (tokens < high)).sum())
    assert sum(item.rows for item in bins) == len(tokens)


def test_one_row_far_out_gets_a_bin_of_its_own() -> None:
    tokens = np.array([100] * 500 + [120] * 500 + [100_000])
    bins = histogram(tokens, 120)
    assert bins[-1].end is None
    assert bins[-1].rows == 1
    assert bins[-1].start <= 260
    assert len([b for b in bins if b.rows]) == 3


def test_sources_share_the_tokens() -> None:
    sources = [Source("a", 0, 2, ACCOUNT), Source("b", 2, 5, None)]
    data = collected(part(ROWS), sources=sources)
    a, b = source_figures(sources, scan(data.train.rows, data.decode, data.special))
    assert (a.rows, a.tokens, a.supervised, a.account) == (2, 18, 12, ACCOUNT)
    assert (b.rows, b.tokens, b.supervised) == (3, 23, 18)
    assert (a.mixture, b.mixture) == (pytest.approx(18 / 41), pytest.approx(23 / 41))
    assert b.supervised_share == pytest.approx(18 / 23)


def test_accounts_add_up() -> None:
    total = total_account([ACCOUNT, ACCOUNT])
    assert (total.read, total.whole, total.truncated, total.split, total.answers_cut) == (20, 10, 4, 2, 2)
    assert Counter(total.dropped) == Counter({"nothing to learn": 4})
    assert total.read == total.whole + total.truncated + total.split + sum(total.dropped.values())


def test_normalising_forgets_case_width_and_white_space() -> None:
    assert normalise(" \uff28ello\n\tSTRASSE ﬁ ") == normalise("hello straße fi")
    assert normalise("a b") != normalise("ab")


def test_runs_are_half_open() -> None:
    assert list(runs(np.array([1, 1, 0, 1, 0], bool))) == [(0, 2), (3, 4)]
    assert list(runs(np.array([0, 1], bool))) == [(1, 2)]
    assert list(runs(np.zeros(3, bool))) == []
