"""Order, errors and memory of work that is spread over processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from toolkit.data.parallel import ordered_map
from toolkit.errors import UserError


def square(value: int) -> int:
    if value == 30:
        raise UserError("thirty")
    return value * value


def die(value: int) -> int:
    os._exit(1)


def test_results_come_in_order_and_are_not_read_far_ahead() -> None:
    taken = []

    def numbers() -> Iterator[int]:
        for number in range(25):
            taken.append(number)
            yield number

    results = ordered_map(square, numbers(), 2)
    assert next(results) == 0
    assert len(taken) <= 8
    assert list(results) == [n * n for n in range(1, 25)]


def test_an_error_comes_in_its_place() -> None:
    results = ordered_map(square, range(40), 2)
    assert [next(results) for _ in range(30)] == [n * n for n in range(30)]
    with pytest.raises(UserError, match="thirty"):
        next(results)


def test_a_worker_that_dies_is_told() -> None:
    with pytest.raises(UserError, match="died"):
        list(ordered_map(die, range(10), 2))
