"""fp16: a step whose gradients overflow is computed again, so that no batch is lost; the curve is that without a scale."""

from __future__ import annotations

import math

import pytest
import torch

from tests.test_loop import layout, model_and_rows  # noqa: F401
from toolkit.config import WatchConfig
from toolkit.data.plan import BatchPlan
from toolkit.data.split import Capacity
from toolkit.errors import NumericalError
from toolkit.health import Health
from toolkit.loop import StepResult, Wishes, train
from toolkit.loss_scale import LossScale
from toolkit.monitor.heartbeat import Heartbeat
from toolkit.optim import Schedule
from toolkit.steps import Feed


def curve(layout, scale: LossScale, said: list[str], ceiling: float = math.inf) -> list[StepResult]:  # noqa: F811
    """Three steps; gradients above `ceiling` become infinite on the way, as they would in fp16."""
    module, rows = model_and_rows([3, 5, 7, 9, 2, 4])
    for parameter in module.parameters():
        parameter.register_hook(lambda grad: grad.where(grad.abs() < ceiling, math.inf))
    results: list[StepResult] = []
    train(
        layout, module, torch.optim.SGD(module.parameters(), lr=0.0),
        Feed(rows, Capacity(None, 1), 0, 1, True, 0).steps(BatchPlan(6, 2, seed=0, shuffle=False), 0, 3),
        schedule=Schedule(0.1, 3, 0, "constant"), max_grad_norm=1.0, seed=0, health=Health(WatchConfig(), print),
        loss_scale=scale, beat=Heartbeat(), say=said.append, record=results.append, wishes=Wishes,
        after_step=lambda step, wished: None,
    )  # fmt: skip
    return results


def test_an_overflow_costs_time_and_no_batch(layout) -> None:  # noqa: F811
    said: list[str] = []
    plain = curve(layout, LossScale(), said)
    assert said == []
    scale = LossScale.starting_at(65536.0)
    scaled = curve(layout, scale, said, ceiling=1000.0)
    assert said, "nothing overflowed: the test tests nothing"
    assert all("computed again" in line for line in said)
    assert scale.value == 65536.0 / 2 ** len(said)
    for mine, wanted in zip(scaled, plain, strict=True):
        assert (mine.loss, mine.grad_norm) == pytest.approx((wanted.loss, wanted.grad_norm), rel=1e-5)
        assert (mine.tokens, mine.label_tokens) == (wanted.tokens, wanted.label_tokens)


def test_a_gradient_that_no_scale_helps_ends_the_run(layout) -> None:  # noqa: F811
    with pytest.raises(NumericalError, match="overflow fp16 at every loss scale"):
        curve(layout, LossScale.starting_at(65536.0), [], ceiling=0.0)


def test_a_loss_that_is_not_finite_is_not_the_scales_affair() -> None:
    scale = LossScale.starting_at(2.0)
    assert not scale.overflowed(math.nan, math.nan, print)
    assert scale.value == 2.0


def test_the_scale_grows_after_2000_good_steps_and_goes_into_a_checkpoint() -> None:
    scale = LossScale.starting_at(1024.0)
    for _ in range(1999):
        scale.good()
    assert scale.value == 1024.0
    again = LossScale.starting_at(65536.0)
    again.restore(scale.state())
    again.good()
    assert (again.value, again.good_steps) == (2048.0, 0)
    without = LossScale.starting_at(None)
    without.restore(scale.state())
    assert without.value == 1.0
