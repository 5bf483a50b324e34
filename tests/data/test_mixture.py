"""What an epoch takes of each source."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from toolkit.data.mixture import Mixture, rows_per_epoch
from toolkit.data.plan import BatchPlan
from toolkit.errors import UserError


def test_weights_are_proportions_and_leave_no_row_out() -> None:
    assert rows_per_epoch([100, 300], [1, 1], [None, None]) == [300, 300]
    assert rows_per_epoch([100, 300], [1, 3], [None, None]) == [100, 300]
    assert rows_per_epoch([100, 300], [None, 2.0], [None, None]) == [150, 300]
    assert rows_per_epoch([100, 300], [None, None], [None, 0.5]) == [100, 150]
    assert rows_per_epoch([100, 300], [None, None], [2.5, None]) == [250, 300]
    with pytest.raises(UserError, match="weight and repeat are both used"):
        rows_per_epoch([1, 1], [1, None], [None, 2])


def test_without_weights_rows_are_as_they_are() -> None:
    places = np.array([4, 0, 2])
    assert Mixture((3, 2), (3, 2), 0).rows(places, 1) is places


def test_a_repeated_source_is_gone_through_evenly() -> None:
    """10 rows taken 25 times an epoch: after two epochs each was seen 5 times; every pass is whole and in its own order."""
    mixture = Mixture((10, 40), (25, 40), seed=3)
    seen = [mixture.rows(np.arange(65), epoch) for epoch in range(2)]
    first = np.concatenate([rows[:25] for rows in seen])
    assert Counter(first.tolist()) == Counter(dict.fromkeys(range(10), 5))
    passes = [tuple(first[i : i + 10]) for i in range(0, 50, 10)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len(set(passes)) == 5
    assert sorted(seen[0][25:].tolist()) == list(range(10, 50))


def test_half_of_a_source_is_another_half_in_the_next_epoch() -> None:
    mixture = Mixture((10,), (5,), seed=0)
    halves = [set(mixture.rows(np.arange(5), epoch).tolist()) for epoch in range(2)]
    assert halves[0] | halves[1] == set(range(10))


def test_a_plan_over_a_mixture_takes_each_place_once() -> None:
    plan = BatchPlan(65, 8, seed=1, mixture=Mixture((10, 40), (25, 40), seed=1))
    rows = np.concatenate([plan.row_ids(step) for step in range(plan.steps_per_epoch)])
    counts = Counter(rows.tolist())
    assert all(counts[row] == 1 for row in range(10, 50))
    assert sorted(counts[row] for row in range(10)) == [2] * 5 + [3] * 5
