"""Answers that are judged one by one: desirable ones become likelier, others less likely (KTO)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedModel

from toolkit.data.collate import MicroBatch
from toolkit.errors import UserError
from toolkit.objectives import ObjectiveOutput
from toolkit.objectives.log_probs import answer_log_probs


@dataclass(frozen=True)
class KTOSettings:
    """beta: how strongly an answer's reward counts. desirable_weight, undesirable_weight: of the two kinds of answers."""

    beta: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0


@dataclass(frozen=True)
class KTO:
    """Equations 7 and 8 of https://arxiv.org/abs/2402.01306. Weight: answers.

    r: the log-probability of an answer less that under the reference; s: the logistic function; the loss of a desirable answer
    is w (1 - s(beta (r - z))), of another w (1 - s(beta (z - r))). z: what the model prefers of answers in general, the
    mean of r over the answers of other rows to each row's prompt, in the whole global batch, and not below 0. It is looked up
    first and has no gradient. Metrics: z as `kl`, mean beta r of both kinds as `rewards/chosen` and `rewards/rejected`, and
    both kinds' mean log-probabilities.
    """

    settings: KTOSettings = field(default_factory=KTOSettings)
    unit = "answers"
    perplexity = False

    def look(self, model: PreTrainedModel, batch: MicroBatch) -> torch.Tensor:
        """[rows, 1] r of the mismatched answers of `batch`."""
        log_probs, _ = answer_log_probs(model, batch)
        return (log_probs - _reference(batch, log_probs))[:, None]

    def __call__(self, model: PreTrainedModel, batch: MicroBatch) -> ObjectiveOutput:
        """Loss sum over the answers of `batch`, as `[]` fp32."""
        log_probs, _ = answer_log_probs(model, batch)
        seen, values = batch.known.seen, batch.known.values
        assert seen is not None or batch.rows == 0
        kl = log_probs.new_zeros(()) if seen is None else seen.mean().clamp(min=0.0)
        beta = self.settings.beta
        ratio = log_probs - _reference(batch, log_probs)
        desirable = torch.zeros(0, device=ratio.device) if values is None else values
        sign = 2.0 * desirable - 1.0
        weight = desirable * self.settings.desirable_weight + (1.0 - desirable) * self.settings.undesirable_weight
        losses = weight * (1.0 - torch.sigmoid(beta * sign * (ratio - kl)))
        loss_sum = losses.sum() + 0.0 * log_probs.sum()  # of a filler, connected to every weight
        with torch.no_grad():
            count = float(batch.rows)
            kinds = {"chosen": desirable, "rejected": 1.0 - desirable}
            metrics = {"kl": kl * count}
            for name, chosen in kinds.items():
                metrics[f"rewards/{name}"] = torch.stack([(beta * ratio * chosen).sum(), chosen.sum()])
                metrics[f"logps/{name}"] = torch.stack([(log_probs * chosen).sum(), chosen.sum()])
        return ObjectiveOutput(loss_sum, torch.tensor(count, device=ratio.device), metrics)


def balance(values: np.ndarray, settings: KTOSettings) -> str:
    """How many answers of each kind there are, and how much they count together. Raises UserError where one kind is missing.

    The authors of KTO advise weights with which desirable answers count 1 to 4/3 times as much as the others (section 4.1).
    """
    good = int((values == 1.0).sum())
    bad = len(values) - good
    if not good or not bad:
        kind = "desirable" if not good else "undesirable"
        raise UserError(f"data.train: no {kind} answer among {len(values):,}; KTO needs both kinds")
    share = settings.desirable_weight * good / max(settings.undesirable_weight * bad, 1e-12)
    said = f"answers: {good:,} desirable and {bad:,} others, which count {share:.3g} to 1 with their weights"
    if 1.0 <= round(share, 3) <= 1.334:
        return said
    return f"warning: {said}; 1 to 1.33 is advised (objective.desirable_weight, objective.undesirable_weight)"


def _reference(batch: MicroBatch, log_probs: torch.Tensor) -> torch.Tensor:
    """[rows] of a filler, which has no answers, none."""
    known = batch.known.reference
    return log_probs.new_zeros(0) if batch.rows == 0 or known is None else known[:, 0]
