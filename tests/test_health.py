"""Which steps are not taken, and what happens then. E03."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from toolkit.config import WatchConfig
from toolkit.errors import NumericalError
from toolkit.health import BadStep, Health
from toolkit.steps import Step


def health(said: list[str] | None = None, **options) -> Health:
    return Health(WatchConfig(**options), (said if said is not None else []).append)


def step(index: int) -> Step:
    return Step(index, np.array([4, 8]), [], 0.0)


@pytest.mark.parametrize(
    ("loss", "norm", "said"), [(math.nan, 1.0, "loss"), (math.inf, 1.0, "loss"), (1.0, math.nan, "gradient")]
)
def test_a_non_finite_step_stops_the_run_with_its_rows(loss: float, norm: float, said: str) -> None:
    judge = health()
    objection = judge.objection(loss, norm)
    assert objection == f"non-finite {said}"
    with pytest.raises(NumericalError, match=rf"{said} at step 7, before the update: loss .* training rows \[4, 8\]"):
        judge.refuse(step(6), objection, loss, norm)


def test_skipping_goes_on_until_there_were_too_many() -> None:
    said: list[str] = []
    judge = health(said, on_bad_step="skip", max_bad_steps=2)
    for index in (3, 5):
        judge.refuse(step(index), "non-finite loss", math.nan, 1.0)
    judge.refuse(step(5), "non-finite loss", math.nan, 1.0)  # the same one again, after a resume
    assert len(said) == 3
    assert "step 4" in said[0]
    with pytest.raises(NumericalError, match="max_bad_steps: 2"):
        judge.refuse(step(9), "non-finite loss", math.nan, 1.0)


def test_rewinding_names_the_step() -> None:
    judge = health(on_bad_step="rewind")
    with pytest.raises(BadStep) as info:
        judge.refuse(step(3), "non-finite loss", math.nan, 1.0)
    assert info.value.index == 3
    assert judge.bad_steps == [3]


def test_a_spike_is_told_from_noise() -> None:
    generator = random.Random(0)
    judge, off = health(spike_sigma=6.0), health()
    for _ in range(200):
        loss = 2.0 + generator.gauss(0, 0.1)
        assert judge.objection(loss, 1.0) is None
    assert "spike" in str(judge.objection(2.0 + 0.1 * 8, 1.0))
    assert judge.objection(2.0 - 0.1 * 20, 1.0) is None  # downwards is what we are here for
    assert off.objection(1e9, 1.0) is None
    assert health(spike_sigma=6.0).objection(1e9, 1.0) is None  # nothing to compare with yet


def test_a_resumed_run_judges_as_the_first_one_did() -> None:
    first, second = health(spike_sigma=4.0), health(spike_sigma=4.0)
    for number in range(64):
        first.objection(1.0 + (number % 7) / 10, 1.0)
    second.restore(first.state())
    for loss in (1.5, 2.0, 3.0, 1.2):
        assert first.objection(loss, 1.0) == second.objection(loss, 1.0)
