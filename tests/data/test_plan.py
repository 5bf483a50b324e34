"""Every row once per epoch, in an order that depends on seed and epoch alone."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

from toolkit.data.permutation import permute
from toolkit.data.plan import BatchPlan


def order(size: int, seed: int = 0, epoch: int = 0) -> list[int]:
    return permute(np.arange(size), size, seed, epoch).tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 11, 16, 17, 1000, 4096, 4097])
@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (0, 1), (123456789, 7)])
def test_a_permutation_has_every_row_once(size: int, seed: int, epoch: int) -> None:
    assert sorted(order(size, seed, epoch)) == list(range(size))


def test_a_place_gives_the_same_row_whatever_it_is_asked_with() -> None:
    assert [order(1000)[place] for place in (999, 3, 500)] == permute(np.array([999, 3, 500]), 1000, 0, 0).tolist()


def test_epochs_and_seeds_differ_and_repeat() -> None:
    assert order(1000, 0, 0) == order(1000, 0, 0)
    orders = [order(1000, seed, epoch) for seed in (0, 1, 2) for epoch in (0, 1, 2)]
    for index, one in enumerate(orders):
        assert one != list(range(1000))
        for other in orders[:index]:
            # Two random orders agree in one place on average.
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 12


def test_the_order_of_old_runs_is_frozen() -> None:
    # A run that is resumed after an update must see the rows it would have seen.
    assert order(11, 0, 0) == [5, 8, 3, 10, 0, 7, 6, 2, 9, 4, 1]
    assert order(11, 0, 1) == [3, 2, 9, 5, 10, 7, 1, 4, 8, 6, 0]
    assert order(11, 1, 0) == [6, 5, 0, 1, 2, 7, 4, 8, 9, 3, 10]
    assert permute(np.array([0, 1, 10**8 - 1]), 10**8, 7, 3).tolist() == [85795481, 78193439, 89322211]


def test_rows_are_spread_evenly_over_places() -> None:
    # Chi-square of (row, place) counts over 2000 epochs of 11 rows: mean 10 x 10, deviation 14.
    counts = np.zeros((11, 11))
    for epoch in range(2000):
        counts[np.arange(11), order(11, 5, epoch)] += 1
    expected = 2000 / 11
    assert ((counts - expected) ** 2 / expected).sum() < 200


def test_neighbours_are_not_kept_together() -> None:
    steps = np.abs(np.diff(order(4096)))
    # Mean distance of two random places is a third of the size.
    assert abs(steps.mean() / 4096 - 1 / 3) < 0.03


@pytest.mark.parametrize(
    ("rows", "batch", "epochs", "steps"),
    [(11, 8, 2, 4), (11, 8, 10, 20), (11, 4, 10, 30), (12, 4, 0.5, 2), (3, 8, 1, 1)],
)
def test_updates_and_rows_add_up(rows: int, batch: int, epochs: float, steps: int) -> None:
    plan = BatchPlan(rows, batch, seed=3)
    assert plan.total_steps(epochs, None) == steps
    consumed = np.concatenate([plan.row_ids(step) for step in range(steps)])
    if epochs == int(epochs):
        assert len(consumed) == rows * epochs
        assert plan.epoch_after(steps - 1) == epochs
        for epoch in consumed.reshape(int(epochs), rows):
            assert sorted(epoch.tolist()) == list(range(rows))


def test_max_steps_overrides_epochs() -> None:
    assert BatchPlan(11, 8, 0).total_steps(10.0, 7) == 7


def test_progress_through_an_epoch() -> None:
    plan = BatchPlan(11, 4, 0)
    assert [plan.epoch_after(step) for step in range(4)] == pytest.approx([4 / 11, 8 / 11, 1.0, 15 / 11])


def test_without_shuffling_rows_come_in_file_order_in_every_epoch() -> None:
    plan = BatchPlan(5, 2, 0, shuffle=False)
    assert [plan.row_ids(step).tolist() for step in range(4)] == [[0, 1], [2, 3], [4], [0, 1]]


def test_the_whole_plan_is_the_permutation_in_batches() -> None:
    plan = BatchPlan(11, 4, seed=9)
    second_epoch = np.concatenate([plan.row_ids(step) for step in range(3, 6)]).tolist()
    assert second_epoch == order(11, 9, 1)


def test_a_hundred_million_rows_cost_nothing() -> None:
    plan = BatchPlan(10**8, 512, seed=1)
    tracemalloc.start()
    started = time.monotonic()
    early, late = plan.row_ids(0), plan.row_ids(plan.steps_per_epoch * 3 - 2)
    seconds = time.monotonic() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 0.5
    assert peak < 2**20
    assert len(set(early.tolist()) | set(late.tolist())) == 1024
    assert late.max() < 10**8
    assert late.max() > 9 * 10**7
