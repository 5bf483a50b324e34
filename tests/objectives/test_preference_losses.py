"""The losses of preference pairs against values worked out by hand and in plain Python's doubles."""

from __future__ import annotations

import math

import pytest
import torch

from toolkit.objectives.preference_losses import LOSSES, Answers, LossSettings

# Log-probability, tokens, reference of the better and the other answer of three pairs.
CHOSEN = [(-12.0, 4, -13.0), (-30.0, 10, -29.0), (-2.0, 1, -2.5)]
REJECTED = [(-15.0, 5, -14.5), (-8.0, 4, -9.0), (-2.0, 1, -2.5)]


def sides(rows: list[tuple[float, int, float]]) -> Answers:
    log_probs, tokens, reference = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    return Answers(log_probs, tokens, reference)


def s(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def odds(p: float) -> float:
    return math.log(math.exp(p) / (1 - math.exp(p)))


# Written out per pair: (p+, n+, q+), (p-, n-, q-).
BY_HAND = {
    "sigmoid": lambda c, r: -math.log(s(0.3 * ((c[0] - c[2]) - (r[0] - r[2])))),
    "hinge": lambda c, r: max(0.0, 1 - 0.3 * ((c[0] - c[2]) - (r[0] - r[2]))),
    "ipo": lambda c, r: ((c[0] - c[2]) / c[1] - (r[0] - r[2]) / r[1] - 1 / 0.6) ** 2,
    "robust": lambda c, r: (
        0.9 * -math.log(s(0.3 * ((c[0] - c[2]) - (r[0] - r[2]))))
        - 0.1 * -math.log(s(-0.3 * ((c[0] - c[2]) - (r[0] - r[2]))))
    ) / 0.8,
    "orpo": lambda c, r: -0.7 * c[0] / c[1] - 0.3 * math.log(s(odds(c[0] / c[1]) - odds(r[0] / r[1]))),
    "simpo": lambda c, r: -math.log(s(0.3 * (c[0] / c[1] - r[0] / r[1]) - 0.4)),
    "cpo": lambda c, r: -math.log(s(0.3 * (c[0] - r[0]))) - 0.7 * c[0] / c[1],
}  # fmt: skip
SETTINGS = LossSettings(beta=0.3, label_smoothing=0.1, gamma=0.4, nll_weight=0.7)


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_its_formula(name: str) -> None:
    losses = LOSSES[name].function(sides(CHOSEN), sides(REJECTED), SETTINGS)
    assert losses.tolist() == pytest.approx(
        [BY_HAND[name](*pair) for pair in zip(CHOSEN, REJECTED, strict=True)], rel=1e-9
    )


def test_values_that_can_be_checked_on_paper() -> None:
    """The third pair has equal sides: h = 0, so -log 1/2, a hinge of 1 and (1 / 2 beta)^2."""
    assert set(BY_HAND) == set(LOSSES)
    chosen, rejected = sides(CHOSEN[2:]), sides(REJECTED[2:])
    values = {name: LOSSES[name].function(chosen, rejected, LossSettings(beta=0.5)).item() for name in LOSSES}
    assert values["sigmoid"] == pytest.approx(0.69314718056)
    assert values["robust"] == pytest.approx(0.69314718056)
    assert values["hinge"] == 1.0
    assert values["ipo"] == 1.0
    assert values["cpo"] == pytest.approx(0.69314718056 + 2.0)
    assert values["orpo"] == pytest.approx(0.5 * 0.69314718056 + 2.0)
    assert values["simpo"] == pytest.approx(math.log(1 + math.exp(0.5)))


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_raise_the_better_answer(name: str) -> None:
    chosen, rejected = (torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (-6.0, -5.0))
    reference, tokens = torch.tensor([-5.5], dtype=torch.float64), torch.tensor([4.0], dtype=torch.float64)
    loss = LOSSES[name].function(Answers(chosen, tokens, reference), Answers(rejected, tokens, reference), SETTINGS)
    loss.sum().backward()
    assert chosen.grad.item() < 0 < rejected.grad.item()
    inputs = (chosen, rejected)
    assert torch.autograd.gradcheck(
        lambda c, r: LOSSES[name].function(Answers(c, tokens, reference), Answers(r, tokens, reference), SETTINGS),
        inputs,
    )


def test_certain_answers_stay_finite() -> None:
    sure = Answers(torch.tensor([-1e-12], requires_grad=True), torch.tensor([5.0]))
    loss = LOSSES["orpo"].function(sure, Answers(torch.tensor([-50.0]), torch.tensor([5.0])), LossSettings())
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(sure.log_probs.grad).all()
