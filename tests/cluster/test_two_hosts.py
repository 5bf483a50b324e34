"""A run on two hosts, each with a launcher of its own, and what becomes of it when the cable between them is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.running import assert_same_curve, curve, flags, free_ports, wait_until
from tests.cluster.two_hosts import Launcher, TwoHosts, missing, until_all_ended

pytestmark = pytest.mark.distributed

HANG_SECONDS = 6.0
# docs/reliability.md: the side of rank 0 takes two intervals and the answers longer, the other one at most 20 s more.
FIRST_SIDE, OTHER_SIDE = HANG_SECONDS + 10.0, HANG_SECONDS + 20.0


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    if reason := missing():
        pytest.skip(reason)
    two = TwoHosts()
    try:
        yield two.start()
    finally:
        two.stop()


@pytest.fixture
def launch(hosts: TwoHosts, tmp_path: Path) -> Iterator[Callable[..., list[Launcher]]]:
    """Start a run on both hosts, one process on each."""
    started: list[Launcher] = []

    def start(*recipe: str) -> list[Launcher]:
        [port] = free_ports(1)
        arguments = ["--num_processes", "2", "--", *recipe]
        for node in (0, 1):
            started.append(hosts.launch(node, tmp_path / f"node{node + 1}.log", port, arguments))
        return started

    yield start
    for launcher in started:
        launcher.kill()


def test_two_hosts_follow_the_curve_of_one_machine(launch, expected, tmp_path: Path) -> None:
    first, second = launch(*flags(tmp_path / "run"))
    assert first.ended(120) == 0, first.output
    assert second.ended(20) == 0, second.output
    assert "node 1 of 2, which meet at 10.77.0.1:" in second.output
    assert_same_curve(tmp_path / "run", expected)


def test_a_cut_cable_ends_both_sides_which_name_the_host_that_they_have_lost(hosts, launch, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    both = launch(*flags(folder, **{"watch.hang_timeout": HANG_SECONDS / 60, "train.max_steps": 5000}))
    first, second = both
    wait_until(lambda: len(curve(folder)) > 5, 90, lambda: first.output + second.output)
    hosts.cut()
    ends = until_all_ended(both, 90)
    assert [launcher.process.returncode for launcher in both] == [4, 4], first.output + second.output
    assert first.output.count("cause: rank 1 on node2 (10.77.0.2) cannot be reached") == 1, first.output
    assert second.output.count("rank 0 on node1 (10.77.0.1) cannot be reached") == 1, second.output
    assert "node1 (10.77.0.1)" not in first.output.split("cause: ")[1].split("\n")[0]
    # Launchers take a few seconds more than the processes that they look after.
    assert HANG_SECONDS * 0.8 < ends[0] < FIRST_SIDE + 10
    assert HANG_SECONDS * 0.8 < ends[1] < OTHER_SIDE + 10
