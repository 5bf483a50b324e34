"""Curves made by hand: what is rounding, what is a difference, and where it begins."""

from __future__ import annotations

import dataclasses
import math

import pytest

from toolkit.parity.compare import BF16, FP16, FP32, POWER_SGD, Point, bounds_of, compare


def made_up(steps: int = 6) -> list[Point]:
    """Loss 4, 3.5, 3, ...; three parameters whose norms 3, 4 and 12 make a global norm of 13."""
    norms = {"z.first": 3.0, "a.second": 4.0, "m.third": 12.0}
    return [Point(n, 4.5 - 0.5 * n, 13.0, 0.1 / n, 100 + n, 50 + n, norms) for n in range(1, steps + 1)]


def changed(curve: list[Point], step: int, **values) -> list[Point]:
    return [dataclasses.replace(point, **values) if point.step == step else point for point in curve]


def test_rounding_is_the_same() -> None:
    curve = changed(made_up(), 2, loss=3.5 * (1 + 9e-6), grad_norm=13.0 * (1 - 4e-6))
    found = compare(made_up(), curve, FP32)
    assert (found.verdict, found.first, found.steps) == ("same", None, 6)
    assert found.worst_loss == pytest.approx(9e-6, rel=1e-3)
    assert found.worst_grad_norm == pytest.approx(4e-6, rel=1e-3)
    assert found.learning_rate_equal
    assert found.rows_equal
    assert [n > 0 for n in found.by_step] == [False, True, False, False, False, False]


@pytest.mark.parametrize(
    ("step", "values", "reason"),
    [
        (4, {"loss": 2.5 * (1 + 2e-5)}, "loss 2.50005 against 2.5"),
        (3, {"grad_norm": 13.1}, "grad_norm 13.1 against 13"),
        (5, {"learning_rate": 0.1 / 5 * (1 + 1e-9)}, "learning_rate 0.02 against 0.02"),
        (2, {"label_tokens": 53}, "label_tokens 53 against 52: the rows differ"),
        (2, {"tokens": 101}, "tokens 101 against 102: the rows differ"),
        (6, {"loss": math.nan}, "loss nan against 1.5"),
        (6, {"grad_norm": math.inf}, "grad_norm inf against 13"),
    ],
)
def test_one_thing_differs_from_a_step_on(step: int, values: dict, reason: str) -> None:
    curve = [dataclasses.replace(p, **values) if p.step == step else p for p in made_up()]
    found = compare(made_up(), curve, FP32)
    assert found.verdict == f"differs from step {step}"
    assert found.first is not None
    assert found.first.reasons == [reason]
    assert found.first.parameters == []
    assert found.learning_rate_equal == ("learning_rate" not in values)
    assert found.rows_equal == (not {"tokens", "label_tokens"} & values.keys())


def test_the_rows_are_named_before_the_loss_that_they_change() -> None:
    found = compare(made_up(), changed(made_up(), 2, loss=3.0, label_tokens=9), FP32)
    assert found.first is not None
    assert [reason.split()[0] for reason in found.first.reasons] == ["label_tokens", "loss"]


def test_parameters_come_in_the_order_of_the_model() -> None:
    norms = {"z.first": 3.1, "a.second": 4.0, "m.third": 12.5}
    found = compare(made_up(), changed(made_up(), 3, gradient_norms=norms), FP32)
    assert found.first is not None
    assert (found.first.step, found.first.parameters, found.first.of_parameters) == (3, ["z.first", "m.third"], 3)
    assert found.first.reasons == ["gradient norm of z.first 3.1 against 3"]
    assert found.verdict == "differs from step 3"


def test_a_gradient_that_is_only_rounding_does_not_count_but_a_small_one_does() -> None:
    """The root mean square of 3, 4, 12 and nearly 0 is 6.5, of which 5e-5 is allowed."""

    def with_small(value: float) -> list[Point]:
        return [dataclasses.replace(p, gradient_norms={**p.gradient_norms, "bias": value}) for p in made_up()]

    assert compare(with_small(1e-9), with_small(3e-4), FP32).first is None
    found = compare(with_small(1e-9), with_small(3.5e-4), FP32).first
    assert found is not None
    assert found.parameters == ["bias"]


def test_a_parameter_that_the_other_does_not_train_is_named() -> None:
    norms = {"z.first": 3.0, "a.second": 4.0, "m.third": 12.0, "more": 1.0}
    found = compare(made_up(), changed(made_up(), 1, gradient_norms=norms), FP32).first
    assert found is not None
    assert found.parameters == ["more"]
    found = compare(changed(made_up(), 1, gradient_norms=norms), made_up(), FP32).first
    assert found is not None
    assert found.parameters == ["more"]


def test_a_nan_in_one_gradient_is_found_and_the_same_nan_is_the_same() -> None:
    norms = {"z.first": 3.0, "a.second": math.nan, "m.third": 12.0}
    broken = changed(made_up(), 2, grad_norm=math.nan, gradient_norms=norms)[:2]
    found = compare(made_up(), broken, FP32)
    assert found.first is not None
    assert found.first.parameters == ["a.second"]
    assert math.isnan(found.worst_grad_norm)
    assert math.isnan(found.by_step[1])
    both = compare(broken, broken, FP32)
    assert (both.verdict, both.worst_grad_norm) == ("same", 0.0)


@pytest.mark.parametrize("steps", [0, 4])
def test_fewer_steps_differ_where_they_end(steps: int) -> None:
    for one, other in ((made_up(), made_up(steps)), (made_up(steps), made_up())):
        found = compare(one, other, FP32)
        assert found.verdict == f"differs from step {steps + 1}"
        assert found.first is not None
        assert "steps" in found.first.reasons[0]


def test_the_precision_of_either_run_widens_the_bounds() -> None:
    plain, bf16 = {"mixed_precision": "no"}, {"mixed_precision": "bf16"}
    off = {"mixed_precision": False}  # what YAML makes of an unquoted no

    def hook(name: str) -> dict:
        return {"parallelism_config": {"ddp_comm_hook": name}}

    assert bounds_of([(plain, "float32"), (off, "float32")]) == FP32
    assert bounds_of([(plain, "float32"), (bf16, "float32")]) == BF16
    assert bounds_of([(bf16, "float32"), ({"mixed_precision": "fp16"}, "")]) == BF16
    assert bounds_of([(plain, "bfloat16"), (plain, "float32")]) == BF16
    assert bounds_of([(plain, "float32"), (hook("fp16"), "float32")]) == FP16
    assert bounds_of([(plain, "float32"), (hook("bf16"), "float32")]) == BF16
    assert bounds_of([(plain, "float32"), (hook("batched_power_sgd"), "float32")]) == POWER_SGD


def test_the_verdict_says_within_which_precision() -> None:
    near = changed(made_up(), 2, loss=3.5 * 1.005)
    assert compare(made_up(), near, BF16).verdict == "same within bf16"
    assert compare(made_up(), near, FP32).verdict == "differs from step 2"
    assert compare(made_up(), made_up(), BF16).verdict == "same"
    assert compare(made_up(), changed(made_up(), 2, loss=3.5 * 1.02), BF16).verdict == "differs from step 2"
