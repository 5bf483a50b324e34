"""Who is slow, from figures; and the figures, from beats."""

from __future__ import annotations

import pytest

from toolkit.monitor.heartbeat import Heartbeat
from toolkit.monitor.stragglers import Figures, Stragglers


def looks(stragglers: Stragglers, number: int, start: int = 0, **slow) -> list:
    """`number` looks, twenty steps apart, at four ranks of which rank 2 has other figures."""
    found = []
    for look in range(number):
        steps = 20 * (start + look + 1)
        figures = {rank: Figures(steps, 1.0, 0.01, 0.3, 0.005) for rank in range(4)}
        usual = {"total": 1.0, "data": 0.01, "compute": 0.3, "probe": 0.005}
        figures[2] = Figures(steps, **(usual | slow))
        found += stragglers.look(figures)
    return found


@pytest.mark.parametrize(
    ("slow", "part"),
    [
        ({"compute": 0.6}, "computing"),
        ({"data": 0.4}, "waiting for data"),
        ({"probe": 0.01}, "a fixed piece of work on its device"),
        ({"data": 0.4, "compute": 0.5}, "waiting for data"),
    ],
)
def test_a_persistently_slow_rank_is_named_once_with_what_is_slow(slow, part) -> None:
    found = looks(Stragglers(1.5), 20, **slow)
    assert [(one.rank, one.part) for one in found] == [(2, part)]
    assert "rank 2 (node7, cuda:1)" in found[0].described("node7, cuda:1")


@pytest.mark.parametrize(
    "slow",
    [
        {},
        {"compute": 0.4},  # not by the factor
        {"data": 0.05},  # five times the others', but a small share of the step
        {"probe": None},
        {"compute": 0.1},  # fast
    ],
)
def test_a_rank_like_the_others_is_not_named(slow) -> None:
    assert looks(Stragglers(1.5), 20, **slow) == []


def test_a_short_spell_is_not_named() -> None:
    stragglers = Stragglers(1.5)
    for start in (0, 4, 8, 12):
        assert looks(stragglers, 3, start, compute=0.9) == []
        assert looks(stragglers, 1, start + 3) == []


def test_a_rank_is_named_again_only_after_it_recovered() -> None:
    stragglers = Stragglers(1.5)
    assert len(looks(stragglers, 5, compute=0.9)) == 1
    assert looks(stragglers, 2, 5) == []
    assert looks(stragglers, 5, 7, compute=0.9) == []  # two good looks are no recovery
    assert looks(stragglers, 4, 12) == []
    assert len(looks(stragglers, 5, 16, compute=0.9)) == 1


def test_two_ranks_are_compared_with_each_other() -> None:
    stragglers, found = Stragglers(1.5), []
    for look in range(1, 6):
        found += stragglers.look({0: Figures(20 * look, 1.0, 0.0, 0.2), 1: Figures(20 * look, 1.0, 0.0, 0.6)})
    assert [one.rank for one in found] == [1]


def test_sharded_layouts_are_judged_by_data_alone() -> None:
    stragglers, found = Stragglers(1.5), []
    for look in range(1, 6):
        found += stragglers.look({r: Figures(20 * look, 1.0, 0.5 if r == 1 else 0.01) for r in range(3)})
    assert [(one.rank, one.part) for one in found] == [(1, "waiting for data")]


def test_what_is_a_small_share_of_a_step_is_not_worth_a_word() -> None:
    stragglers = Stragglers(1.5)
    for look in range(1, 10):
        figures = {r: Figures(20 * look, 1.0, 0.05 if r == 1 else 0.01) for r in range(3)}
        assert stragglers.look(figures) == []


def test_zero_never_looks_and_steps_must_pass_between_looks() -> None:
    assert looks(Stragglers(0), 20, compute=9.0) == []
    stragglers = Stragglers(1.5)
    slow = {0: Figures(20, 1.0, 0.0, 0.1), 1: Figures(20, 1.0, 0.0, 0.9)}
    assert all(stragglers.look(slow) == [] for _ in range(10))


def test_beats_give_the_parts_of_a_step(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("toolkit.monitor.heartbeat.time.monotonic", lambda: now[0])
    beat = Heartbeat()
    assert beat.times() is None
    phases = [
        ("data", 1.0), ("forward", 2.0), ("backward", 4.0), ("forward", 8.0), ("backward", 16.0), ("reduce", 32.0),
        ("update", 64.0), ("evaluate", 128.0), ("save", 128.0),
    ]  # fmt: skip
    for step in range(1, 4):
        for phase, seconds in phases:
            beat(phase, step)
            now[0] += seconds
    times = beat.times()
    assert times is not None
    assert (times.data, times.compute, times.total) == (1.0, 2.0 + 4.0 + 8.0, 63.0)
    assert beat.steps == 3
    assert beat.pulse.phase == "save"
    assert beat.pulse.beats == 27
