"""Order, errors and memory of work that is spread over processes."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator

import pytest

from toolkit.data.parallel import ordered_map
from toolkit.errors import UserError


def square(value: int) -> int:
    time.sleep(0.02)
    if value == 300:
        raise UserError("three hundred")
    return value * value


def die(value: int) -> int:
    if multiprocessing.parent_process() is not None:
        os._exit(1)
    time.sleep(0.05)  # alone, while the workers start
    return value


def where(value: int) -> tuple[int, int]:
    time.sleep(0.02)
    return value, os.getpid()


def test_results_come_in_order_from_several_processes_and_are_not_read_far_ahead() -> None:
    taken = []

    def numbers() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    seen, processes = 0, set()
    for number, process in ordered_map(where, numbers(), 2):
        assert number == seen
        assert len(taken) <= seen + 8
        seen, processes = seen + 1, processes | {process}
    assert seen == 1000
    assert os.getpid() in processes  # which does not wait for the others to start
    assert len(processes) == 3


def test_an_error_comes_in_its_place() -> None:
    results = ordered_map(square, range(400), 2)
    assert [next(results) for _ in range(300)] == [n * n for n in range(300)]
    with pytest.raises(UserError, match="three hundred"):
        next(results)


def test_a_worker_that_dies_is_told() -> None:
    with pytest.raises(UserError, match="died"):
        list(ordered_map(die, range(1000), 2))
