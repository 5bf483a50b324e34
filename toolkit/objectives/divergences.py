"""How far a student's distribution of the next token is from its teacher's: one function each, `[positions]` fp32.

p: the teacher's probabilities, q: the student's, both over the same outcomes `[positions, outcomes]`, given as logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Divergence = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]

# Of the outcomes that are not among a teacher's likeliest; a smaller share would be lost in the sum of the others.
_LEAST_REST = 1e-7


def forward_kl(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """KL(p || q) = sum p log(p / q): the student must cover all that the teacher does. https://arxiv.org/abs/1503.02531."""
    return _kl(teacher, student)


def reverse_kl(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """KL(q || p) = sum q log(q / p): the student may leave out what it cannot do. https://arxiv.org/abs/2306.08543, eq. 1."""
    return _kl(student, teacher)


def jsd(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """beta KL(p || m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q: https://arxiv.org/abs/2306.13649, equation 1."""
    mean = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    return beta * _kl(teacher, mean) + (1 - beta) * _kl(student, mean)


DIVERGENCES: dict[str, Divergence] = {"forward_kl": forward_kl, "reverse_kl": reverse_kl, "jsd": jsd}


def likeliest(log_probs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Outcomes `[positions, k + 1]` of log-probabilities `[positions, vocabulary]`: the tokens `ids` `[positions, k]`, and one
    for all others together."""
    return with_rest(log_probs.gather(1, ids))


def with_rest(log_probs: torch.Tensor) -> torch.Tensor:
    """`[positions, k + 1]`: log-probabilities `[positions, k]` of some outcomes, and that of all others together."""
    rest = (1.0 - log_probs.exp().sum(-1, keepdim=True)).clamp(min=_LEAST_REST).log()
    return torch.cat([log_probs, rest], dim=-1)


def _kl(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one.exp() * (one - other)).sum(-1)
