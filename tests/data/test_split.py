"""A global batch in equal numbers of micro-batches: every row once, nothing over capacity, work even."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from toolkit.data.split import Capacity, split

Parts = list[list[np.ndarray]]


def cut(lengths: list[int], slots: int, **capacity) -> Parts:
    """Row ids are 100, 101, ... so that an index cannot pass for an id."""
    limits = {"max_tokens": None, "max_rows": None, **capacity}
    return split(100 + np.arange(len(lengths)), np.array(lengths), slots, Capacity(**limits))


def rounds(parts: Parts) -> int:
    counts = {len(slot) for slot in parts}
    assert len(counts) == 1
    return counts.pop()


@pytest.mark.parametrize("slots", [1, 2, 3, 8])
@pytest.mark.parametrize("limits", [{"max_tokens": 700}, {"max_rows": 3}, {"max_tokens": 900, "max_rows": 4}])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_every_row_once_within_capacity_and_as_many_rounds_on_every_slot(
    slots: int, limits: dict[str, int], padded: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(2, 600, size=int(random.integers(1, 65)))
    parts = cut(lengths.tolist(), slots, padded=padded, quadratic=1000.0, **limits)
    assert len(parts) == slots
    rounds(parts)
    ids = np.concatenate([part for slot in parts for part in slot])
    assert sorted(ids.tolist()) == list(range(100, 100 + len(lengths)))
    for part in (part for slot in parts for part in slot):
        held = lengths[part - 100]
        tokens = len(held) * held.max(initial=0) if padded else held.sum()
        assert tokens <= limits.get("max_tokens", 10**9)
        assert len(held) <= limits.get("max_rows", 10**9)


@pytest.mark.parametrize(
    ("lengths", "slots", "limits", "expected"),
    [
        ([10] * 8, 2, {"max_rows": 2}, 2),
        ([10] * 9, 2, {"max_rows": 2}, 3),
        ([10] * 8, 1, {}, 1),
        ([10] * 8, 4, {"max_tokens": 20}, 1),
        ([10] * 8, 4, {"max_tokens": 19}, 2),
        ([100, 10, 10, 10], 1, {"max_tokens": 130}, 1),
        # Padded, the long row makes 4 x 100; two micro-batches hold 100 and 3 x 10.
        ([100, 10, 10, 10], 1, {"max_tokens": 130, "padded": True}, 2),
        ([60, 60, 40, 40], 2, {"max_tokens": 100}, 1),
    ],
)
def test_the_least_number_of_rounds(lengths: list[int], slots: int, limits: dict, expected: int) -> None:
    assert rounds(cut(lengths, slots, **limits)) == expected


def test_a_slot_with_nothing_left_gets_a_filler() -> None:
    parts = cut([10, 20, 30], 2, max_rows=1)
    assert rounds(parts) == 2
    assert sorted(len(part) for slot in parts for part in slot) == [0, 1, 1, 1]
    alone = cut([10], 4)
    assert sorted(len(slot[0]) for slot in alone) == [0, 0, 0, 1]


def test_a_row_longer_than_the_limit_goes_alone() -> None:
    parts = cut([500, 10, 10], 1, max_tokens=100)
    filled = [part.tolist() for part in parts[0] if len(part)]
    assert filled[0] == [100]
    assert sorted(row for part in filled for row in part) == [100, 101, 102]


def test_the_first_round_is_the_heaviest_and_totals_are_even() -> None:
    parts = cut([80, 70, 60, 50, 40, 30, 20, 10], 2, max_rows=1)
    sizes = [[int(180 - 10 * part[0] + 900) for part in slot] for slot in parts]
    for slot in sizes:
        assert slot == sorted(slot, reverse=True)
    # Pairs 80/70, 60/50, 40/30, 20/10: the heavier goes to the slot with less so far.
    assert sorted(map(sum, sizes)) == [180, 180]


def test_the_heaviest_micro_batch_is_first_also_when_it_is_not_the_one_with_the_longest_row() -> None:
    assert [part.tolist() for part in cut([50, 40, 30], 1, max_rows=2)[0]] == [[101, 102], [100]]


@pytest.mark.parametrize("slots", [2, 4, 8])
def test_work_is_even_on_random_rows(slots: int) -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        lengths = np.minimum(random.lognormal(5, 1, size=32 * slots).astype(int) + 2, 2048)
        capacity = Capacity(8192, None, quadratic=6912.0)
        parts = split(np.arange(len(lengths)), lengths, slots, capacity)
        work = np.array([[capacity.work(lengths[part]).sum() for part in slot] for slot in parts])
        assert work.sum(axis=1).mean() / work.sum(axis=1).max() > 0.97
        assert (work.mean(axis=0) / work.max(axis=0)).min() > 0.9


def test_long_rows_weigh_more_than_their_tokens() -> None:
    capacity = Capacity(None, None, quadratic=100.0)
    assert capacity.work(np.array([100, 200])).tolist() == [200.0, 600.0]
    # One row of 200 (work 600) against six of 50 (75 each) and two of 30: by tokens alone it would get company.
    parts = cut([200, 50, 50, 50, 50, 50, 50], 2, quadratic=100.0)
    assert [100] in [slot[0].tolist() for slot in parts]


def test_all_processes_cut_alike() -> None:
    code = (
        "import numpy as np; from toolkit.data.split import *; l = np.random.default_rng(3).integers(2, 99, 50);"
        "print([[p.tolist() for p in s] for s in split(np.arange(50), l, 3, Capacity(300, 7, quadratic=50.0))])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
