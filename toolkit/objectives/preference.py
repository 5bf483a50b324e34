"""Preference pairs: the better of two answers is made likelier than the other. The losses: `preference_losses`."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from toolkit.data.collate import MicroBatch
from toolkit.objectives import ObjectiveOutput
from toolkit.objectives.log_probs import answer_log_probs
from toolkit.objectives.preference_losses import LOSSES, Answers, LossSettings


@dataclass(frozen=True)
class Preference:
    """One of `LOSSES` over pairs. Weight: pairs. Metrics, sums over pairs: rewards (beta x that of the loss) of the better and
    of the other answer, their margin, how often the better one has more, and both log-probabilities."""

    loss: str = "sigmoid"
    settings: LossSettings = field(default_factory=LossSettings)
    unit = "pairs"
    perplexity = False

    @property
    def reference(self) -> bool:
        """True for losses that compare with the model as it was."""
        return LOSSES[self.loss].reference

    def __call__(self, model: PreTrainedModel, batch: MicroBatch) -> ObjectiveOutput:
        """Loss sum over the pairs of `batch`, as `[]` fp32. Log-probabilities are sums over the tokens of an answer."""
        log_probs, tokens = answer_log_probs(model, batch)
        kind, pairs = LOSSES[self.loss], batch.pairs
        reference = batch.known.reference if self.reference else None
        if self.reference and pairs == 0:
            reference = log_probs.new_zeros(0, 2)  # a filler has no answers to compare
        sides = [
            Answers(log_probs[side::2], tokens[side::2], None if reference is None else reference[:, side])
            for side in (0, 1)
        ]
        # Of a filler, the sum of nothing still leads back to every weight, as all ranks must.
        loss_sum = kind.function(sides[0], sides[1], self.settings).sum() + 0.0 * log_probs.sum()
        with torch.no_grad():
            rewards = [self.settings.beta * kind.reward(side) for side in sides]
            margin = rewards[0] - rewards[1]
            metrics = {
                "rewards/chosen": rewards[0].sum(),
                "rewards/rejected": rewards[1].sum(),
                "rewards/margins": margin.sum(),
                "rewards/accuracies": (margin > 0).float().sum(),
                "logps/chosen": sides[0].log_probs.sum(),
                "logps/rejected": sides[1].log_probs.sum(),
            }
        return ObjectiveOutput(loss_sum, torch.tensor(float(pairs), device=log_probs.device), metrics)
