"""Next-token cross-entropy on labelled positions, in chunks: the full `[seq, vocabulary]` logits never exist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from toolkit.data.collate import MicroBatch
from toolkit.objectives import ObjectiveOutput
from toolkit.objectives.head import OutputHead, blocks, finish, hidden_states, local, normalised, store_gradient
from toolkit.objectives.product import HeadProduct, scaled
from toolkit.parallel.vocabulary import VocabularyShard

# Bytes of logits held at once, in the precision of the matrix product: in bf16 1365 positions of a 49k vocabulary, 441 of
# a 150k one. Many positions to a product, so that it runs at full speed and the matrix's gradient is touched seldom.
_CHUNK_BYTES = 2**27


@dataclass(frozen=True)
class CausalLanguageModeling:
    """Cross-entropy of the next token. Weight: labelled tokens. Metrics when evaluating: tokens predicted exactly.

    label_smoothing: in training, the share of each target that is spread evenly over the vocabulary
    (https://arxiv.org/abs/1512.00567, section 7). Evaluation is the plain cross-entropy, of which perplexity is made.
    """

    label_smoothing: float = 0.0
    unit = "tokens"
    perplexity = True

    def __call__(self, model: PreTrainedModel, batch: MicroBatch) -> ObjectiveOutput:
        """Loss sum over the labelled positions of `batch`, as `[]` fp32."""
        hidden = hidden_states(model, batch)
        # Hidden states of unlabelled positions never meet the vocabulary matrix.
        hidden, targets = hidden[batch.labelled], batch.targets[batch.labelled]
        head = OutputHead.of(model)
        training = torch.is_grad_enabled()
        shard = VocabularyShard.of(head.weight)
        weight_here, bias_here = local(head.weight), local(head.bias)
        loss_sum, correct = _ChunkedCrossEntropy.apply(
            hidden, weight_here, bias_here, targets, head.scale, head.softcap, training, shard, self.label_smoothing
        )
        weight = torch.tensor(float(batch.label_tokens), device=hidden.device)
        return ObjectiveOutput(loss_sum, weight, {} if training else {"token_accuracy": correct})


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Sum of -log softmax(logits)[target]; makes its gradients in forward, so that logits live for one chunk only.

    d loss / d logits = softmax(logits) - onehot(target), the textbook gradient of cross-entropy. With smoothing s, in
    training only: (1 - s) x that loss + s x the mean of -log softmax(logits) over the V tokens of the vocabulary, whose
    gradient is softmax(logits) - (1 - s) onehot(target) - s / V.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        scale: float,
        softcap: float | None,
        training: bool,
        shard: VocabularyShard | None,
        smoothing: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss sum and number of exact predictions (0 when training) of `hidden` `[positions, hidden]`, both `[]`."""
        # Inside a Function gradients are always off, and what it needs is told even under no_grad: so it is passed in.
        product = HeadProduct(hidden, weight, bias, [training and needed for needed in ctx.needs_input_grad[:3]])
        loss_sum = torch.zeros((), dtype=torch.float32, device=hidden.device)
        correct = torch.zeros_like(loss_sum)
        with torch.autocast(hidden.device.type, enabled=False):
            for part, logits in product.chunks(_CHUNK_BYTES):
                if not training:
                    loss, right = _score(logits, targets[part], scale, softcap, shard)
                    loss_sum, correct = loss_sum + loss, correct + right
                    continue
                loss_sum += _turn_into_gradient(logits, targets[part], scale, softcap, shard, smoothing)
                product.add(part, logits)
        ctx.grads = product.gradients
        if shard is not None and ctx.grads[0] is not None:
            shard.sum(ctx.grads[0])  # each rank has the part of its own tokens
        ctx.mark_non_differentiable(correct)
        return loss_sum, correct

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Of the loss sum alone."""
        grads, ctx.grads = scaled(ctx.grads, grad_outputs[0]), None
        return *grads, None, None, None, None, None, None


def _score(
    logits: torch.Tensor, targets: torch.Tensor, scale: float, softcap: float | None, shard: VocabularyShard | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss sum and number of exactly predicted targets `[positions]` of raw logits `[positions, vocabulary]`."""
    loss_sum = torch.zeros((), dtype=torch.float32, device=logits.device)
    correct = torch.zeros_like(loss_sum)
    if shard is None:
        for part, target in blocks(logits, targets):
            log_probs = functional.log_softmax(finish(part, scale, softcap), dim=-1)
            loss_sum -= log_probs.gather(1, target).sum()
            correct += (log_probs.argmax(-1, keepdim=True) == target).sum()
        return loss_sum, correct
    values = finish(logits, scale, softcap)
    _, log_probs = normalised(values, targets, shard)
    best = shard.best(*values.max(dim=-1))
    return -log_probs.sum(), (best == targets).sum().float()


def _turn_into_gradient(
    logits: torch.Tensor,
    targets: torch.Tensor,
    scale: float,
    softcap: float | None,
    shard: VocabularyShard | None,
    smoothing: float,
) -> torch.Tensor:
    """Loss sum of raw logits `[positions, vocabulary]`, which become its gradient with respect to themselves."""
    loss_sum = torch.zeros((), dtype=torch.float32, device=logits.device)
    if shard is not None:
        values = finish(logits, scale, softcap)
        normalizer, log_probs = normalised(values, targets, shard)
        local, here = shard.local_targets(targets[:, None])
        gradient = (values - normalizer[:, None]).exp_()
        gradient.scatter_add_(1, local, -(1.0 - smoothing) * here.to(gradient.dtype))
        if smoothing:
            vocabulary = shard.vocabulary
            gradient -= smoothing / vocabulary
            mean = shard.sum(values.sum(-1)) / vocabulary - normalizer
            log_probs = (1.0 - smoothing) * log_probs + smoothing * mean
        store_gradient(logits, gradient, values, scale, softcap)
        return -log_probs.sum()
    for part, target in blocks(logits, targets):
        values = finish(part, scale, softcap)
        log_probs = functional.log_softmax(values, dim=-1)
        if smoothing:
            loss_sum -= smoothing * log_probs.mean(-1).sum()
        loss_sum -= (1.0 - smoothing) * log_probs.gather(1, target).sum()
        gradient = log_probs.exp_()
        gradient.scatter_add_(1, target, torch.full_like(target, smoothing - 1.0, dtype=gradient.dtype))
        if smoothing:
            gradient -= smoothing / logits.shape[1]
        store_gradient(part, gradient, values, scale, softcap)
    return loss_sum
