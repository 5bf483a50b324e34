"""What the reference model thinks of the answers of pairs: computed once, before the first step, by the model as it starts.

That is the frozen start model of a whole fine-tuning, the base below a new adapter, and the policy that a continued adapter
was, without a second model in memory. A resumed run computes it again before it reads its checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import PreTrainedModel

from toolkit.data.collate import MicroBatch
from toolkit.layout import Layout
from toolkit.monitor.heartbeat import Beat
from toolkit.objectives import ObjectiveModule, ObjectiveOutput
from toolkit.objectives.preference import answer_log_probs
from toolkit.steps import Feed

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class _AnswerLogProbs:
    """In the place of an objective: log-probabilities `[2 x pairs]` and no loss."""

    unit = "pairs"
    perplexity = False
    reference = False

    def __call__(self, model: PreTrainedModel, batch: MicroBatch) -> ObjectiveOutput:
        """They come as a metric, since those leave the wrapped module as they are."""
        found, _ = answer_log_probs(model, batch)
        return ObjectiveOutput(found.sum(), found.new_zeros(()), {"log_probs": found})


def with_reference(layout: Layout, module: torch.nn.Module, feed: Feed, beat: Beat) -> Feed:
    """`feed` with what the model, as it is now, thinks of its answers."""
    known = reference_log_probs(layout, module, feed, beat)
    return replace(feed, rows=replace(feed.rows, reference=known))


@torch.no_grad()
def reference_log_probs(layout: Layout, module: torch.nn.Module, feed: Feed, beat: Beat) -> np.ndarray:
    """[rows, 2] fp32: of the better and of the other answer of every pair of `feed`, on every rank, in eval mode."""
    plain: ObjectiveModule = layout.accelerator.unwrap_model(module)
    was_training, objective = module.training, plain.objective
    module.eval()
    plain.objective = _AnswerLogProbs()
    found = torch.zeros(len(feed.rows), 2, dtype=torch.float32, device=layout.device)
    for start in range(0, len(feed.rows), _ROWS_AT_ONCE):
        for ids, batch in feed.parts(np.arange(start, min(start + _ROWS_AT_ONCE, len(feed.rows)))):
            beat("reference")
            log_probs = module(batch.to(layout.device)).metrics["log_probs"]
            if len(ids):
                found[torch.from_numpy(ids).to(found.device)] = log_probs.view(-1, 2)
    plain.objective = objective
    module.train(was_training)
    layout.shard_again(module)
    return layout.total(found).cpu().numpy()
