"""Losses of preference pairs, from the log-probabilities of their answers: one function each, `[pairs]` fp32.

p: sum of the log-probabilities of an answer's tokens under the model that is trained; q: the same under the reference;
n: tokens of the answer; + the better answer, - the other. h = (p+ - q+) - (p- - q-).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid, relu


@dataclass(frozen=True)
class Answers:
    """Sums of log-probabilities `[pairs]` and numbers of tokens `[pairs]` of one side of the pairs.

    reference: the same sums under the reference model; None for losses that need none.
    """

    log_probs: torch.Tensor
    tokens: torch.Tensor
    reference: torch.Tensor | None = None

    @property
    def ratio(self) -> torch.Tensor:
        """p - q."""
        assert self.reference is not None
        return self.log_probs - self.reference

    @property
    def per_token(self) -> torch.Tensor:
        """p / n."""
        return self.log_probs / self.tokens


@dataclass(frozen=True)
class LossSettings:
    """beta: how strongly the margin counts; label_smoothing: the share of pairs that are the wrong way round (robust);
    gamma: the margin that simpo asks for; nll_weight: weight of the better answer's own cross-entropy in orpo and cpo."""

    beta: float = 0.1
    label_smoothing: float = 0.0
    gamma: float = 0.5
    nll_weight: float = 1.0


@dataclass(frozen=True)
class PreferenceLoss:
    """function: of the better answers, the others and the settings. reference: whether it compares with a frozen model.
    reward: what counts as an answer's reward in the metrics, `[pairs]`, before it is multiplied by beta."""

    function: Callable[[Answers, Answers, LossSettings], torch.Tensor]
    reference: bool
    reward: Callable[[Answers], torch.Tensor]


def sigmoid(chosen: Answers, rejected: Answers, settings: LossSettings) -> torch.Tensor:
    """-log s(beta h): DPO, equation 7 of https://arxiv.org/abs/2305.18290."""
    return -logsigmoid(settings.beta * (chosen.ratio - rejected.ratio))


def hinge(chosen: Answers, rejected: Answers, settings: LossSettings) -> torch.Tensor:
    """max(0, 1 - beta h): SLiC's loss on DPO's margin, https://arxiv.org/abs/2309.06657, equation 9."""
    return relu(1 - settings.beta * (chosen.ratio - rejected.ratio))


def ipo(chosen: Answers, rejected: Answers, settings: LossSettings) -> torch.Tensor:
    """((p+ - q+) / n+ - (p- - q-) / n- - 1 / (2 beta))^2: equation 17 of https://arxiv.org/abs/2310.12036.

    Per token, as its authors compute it; with sums the target of the margin would depend on the answers' lengths.
    """
    margin = chosen.ratio / chosen.tokens - rejected.ratio / rejected.tokens
    return (margin - 1 / (2 * settings.beta)) ** 2


def robust(chosen: Answers, rejected: Answers, settings: LossSettings) -> torch.Tensor:
    """(-(1 - e) log s(beta h) + e log s(-beta h)) / (1 - 2 e), unbiased where a share e of the pairs is the wrong way round:
    https://arxiv.org/abs/2403.00409, equation 12."""
    margin, flipped = settings.beta * (chosen.ratio - rejected.ratio), settings.label_smoothing
    return (-(1 - flipped) * logsigmoid(margin) + flipped * logsigmoid(-margin)) / (1 - 2 * flipped)


def orpo(chosen: Answers, rejected: Answers, settings: LossSettings) -> torch.Tensor:
    """-w p+ / n+ - beta log s(o+ - o-), o = log(P / (1 - P)), P = exp(p / n): https://arxiv.org/abs/2403.07691, eq. 6 and 7."""
    odds = [side.per_token - _log1mexp(side.per_token) for side in (chosen, rejected)]
    return -settings.nll_weight * chosen.per_token - settings.beta * logsigmoid(odds[0] - odds[1])


def simpo(chosen: Answers, rejected: Answers, settings: LossSettings) -> torch.Tensor:
    """-log s(beta (p+ / n+ - p- / n-) - gamma): https://arxiv.org/abs/2405.14734, equation 6."""
    return -logsigmoid(settings.beta * (chosen.per_token - rejected.per_token) - settings.gamma)


def cpo(chosen: Answers, rejected: Answers, settings: LossSettings) -> torch.Tensor:
    """-log s(beta (p+ - p-)) - w p+ / n+: https://arxiv.org/abs/2401.08417, equation 5."""
    margin = settings.beta * (chosen.log_probs - rejected.log_probs)
    return -logsigmoid(margin) - settings.nll_weight * chosen.per_token


LOSSES: dict[str, PreferenceLoss] = {
    "sigmoid": PreferenceLoss(sigmoid, True, lambda side: side.ratio),
    "hinge": PreferenceLoss(hinge, True, lambda side: side.ratio),
    "ipo": PreferenceLoss(ipo, True, lambda side: side.ratio),
    "robust": PreferenceLoss(robust, True, lambda side: side.ratio),
    "orpo": PreferenceLoss(orpo, False, lambda side: side.per_token),
    "simpo": PreferenceLoss(simpo, False, lambda side: side.per_token),
    "cpo": PreferenceLoss(cpo, False, lambda side: side.log_probs),
}


def _log1mexp(x: torch.Tensor) -> torch.Tensor:
    """log(1 - exp(x)) of x < 0 without cancellation (Maechler, https://cran.r-project.org/package=Rmpfr, log1mexp-note)."""
    x = x.clamp(max=-1e-7)  # certain tokens: the odds would be infinite
    return torch.where(x > -0.6931471805599453, torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))
