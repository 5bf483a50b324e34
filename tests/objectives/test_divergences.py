"""Divergences against sums written out in double precision, and against TRL's."""

from __future__ import annotations

import math

import pytest
import torch

from toolkit.objectives.divergences import DIVERGENCES, likeliest, with_rest

P, Q = [0.7, 0.2, 0.1], [0.5, 0.25, 0.25]  # the teacher's, the student's


def by_hand(name: str, beta: float) -> float:
    def kl(one: list[float], other: list[float]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(one, other, strict=True))

    if name == "forward_kl":
        return kl(P, Q)
    if name == "reverse_kl":
        return kl(Q, P)
    mean = [beta * p + (1 - beta) * q for p, q in zip(P, Q, strict=True)]
    return beta * kl(P, mean) + (1 - beta) * kl(Q, mean)


@pytest.mark.parametrize("beta", [0.5, 0.2])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_values(name: str, beta: float) -> None:
    student, teacher = (torch.tensor([values], dtype=torch.float64).log() for values in (Q, P))
    found = DIVERGENCES[name](student, teacher, beta)
    assert found.shape == (1,)
    assert found.item() == pytest.approx(by_hand(name, beta), rel=1e-12)
    assert DIVERGENCES[name](teacher, teacher, beta).item() == pytest.approx(0.0, abs=1e-12)


def test_the_rest_is_what_is_left() -> None:
    log_probs = torch.tensor([[0.5, 0.2, 0.2, 0.1]]).log()
    outcomes = likeliest(log_probs, torch.tensor([[0, 2]]))
    torch.testing.assert_close(outcomes.exp(), torch.tensor([[0.5, 0.2, 0.3]]))
    assert with_rest(torch.tensor([[0.0]])).exp()[0, 1].item() < 1e-6, "a certain token leaves nothing, and no infinity"


@pytest.mark.parametrize(("name", "beta"), [("jsd", 0.5), ("jsd", 0.1), ("forward_kl", 0.0), ("reverse_kl", 1.0)])
@pytest.mark.filterwarnings("ignore")
def test_trl_gives_the_same(name: str, beta: float) -> None:
    """Its beta of 0 and 1 are the two KL divergences."""
    pytest.importorskip("trl", reason="compares with TRL's losses")
    from trl.experimental.gkd.gkd_trainer import GKDTrainer

    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(1, 5, 11, generator=generator) * 2 for _ in range(2))
    wanted = GKDTrainer.generalized_jsd_loss(student, teacher, beta=beta, temperature=1.7, reduction="sum")
    logs = [(values[0] / 1.7).log_softmax(-1) for values in (student, teacher)]
    assert DIVERGENCES[name](*logs, beta or 0.5).sum().item() == pytest.approx(wanted.item(), rel=1e-5)
