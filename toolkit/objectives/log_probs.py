"""Log-probabilities of target tokens, one per position, in chunks: the full `[seq, vocabulary]` logits never exist.

What a loss does with them is known only when all are made, so their gradient cannot be made along with them, as that of a plain
cross-entropy is (`causal_lm`): the logits of each chunk are computed again on the way back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from toolkit.data.collate import MicroBatch
from toolkit.objectives.head import OutputHead, blocks, finish, hidden_states, local, normalised, store_gradient
from toolkit.objectives.product import HeadProduct
from toolkit.parallel.vocabulary import VocabularyShard

_CHUNK_BYTES = 2**27  # of logits held at once, in the precision of the matrix product


def target_log_probs(hidden: torch.Tensor, head: OutputHead, targets: torch.Tensor) -> torch.Tensor:
    """log softmax(logits)[target] `[positions]` in fp32, of `hidden` `[positions, hidden]` and `targets` `[positions]`."""
    shard = VocabularyShard.of(head.weight)
    weight, bias = local(head.weight), local(head.bias)
    return _ChunkedLogProbs.apply(hidden, weight, bias, targets, head.scale, head.softcap, shard)


def answer_log_probs(model: PreTrainedModel, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of log-probabilities and numbers of tokens of the answers of `batch`, fp32 both, in its order: `[2 x pairs]`, or
    `[rows]` of rows that are no pairs."""
    hidden = hidden_states(model, batch)[batch.labelled]
    found = target_log_probs(hidden, OutputHead.of(model), batch.targets[batch.labelled])
    count = 2 * batch.pairs if batch.pairs else batch.rows
    sums = torch.zeros(count, dtype=torch.float32, device=found.device)
    if batch.answers is None:
        return sums + found.sum(), sums  # a filler: nothing, but connected to the graph
    ones = torch.ones_like(found)
    return sums.index_add(0, batch.answers, found), sums.index_add(0, batch.answers, ones)


class _ChunkedLogProbs(torch.autograd.Function):
    """d log p(target) / d logits = onehot(target) - softmax(logits)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        scale: float,
        softcap: float | None,
        shard: VocabularyShard | None,
    ) -> torch.Tensor:
        """`[positions]` fp32."""
        product = HeadProduct(hidden, weight, bias)
        ctx.save_for_backward(hidden, weight, bias, targets)
        ctx.settings = product.compute, scale, softcap, shard
        found = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for part, logits in product.chunks(_CHUNK_BYTES):
                found[part] = _log_probs(logits, targets[part], scale, softcap, shard)
        return found

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """With the logits of each chunk computed again."""
        hidden, weight, bias, targets = ctx.saved_tensors
        compute, scale, softcap, shard = ctx.settings
        product = HeadProduct(hidden, weight, bias, ctx.needs_input_grad[:3], compute)
        with torch.autocast(hidden.device.type, enabled=False):
            for part, logits in product.chunks(_CHUNK_BYTES):
                _turn_into_gradient(logits, targets[part], grad_outputs[0][part], scale, softcap, shard)
                product.add(part, logits)
        grads = product.gradients
        if shard is not None and grads[0] is not None:
            shard.sum(grads[0])  # each rank has the part of its own tokens
        return *grads, None, None, None, None


def _log_probs(
    logits: torch.Tensor, targets: torch.Tensor, scale: float, softcap: float | None, shard: VocabularyShard | None
) -> torch.Tensor:
    """`[positions]` of raw logits `[positions, vocabulary]`."""
    if shard is not None:
        return normalised(finish(logits, scale, softcap), targets, shard)[1]
    parts = []
    for part, target in blocks(logits, targets):
        values = finish(part, scale, softcap)
        parts.append(values.gather(1, target)[:, 0] - values.logsumexp(-1))
    return torch.cat(parts)


def _turn_into_gradient(
    logits: torch.Tensor,
    targets: torch.Tensor,
    outer: torch.Tensor,
    scale: float,
    softcap: float | None,
    shard: VocabularyShard | None,
) -> None:
    """Raw logits `[positions, vocabulary]` become the gradient with respect to themselves; `outer` `[positions]` is that of
    the log-probabilities."""
    if shard is not None:
        values = finish(logits, scale, softcap)
        normalizer, _ = normalised(values, targets, shard)
        place, here = shard.local_targets(targets[:, None])
        gradient = (values - normalizer[:, None]).exp_()
        gradient.scatter_add_(1, place, -here.to(gradient.dtype))
        store_gradient(logits, gradient * -outer[:, None], values, scale, softcap)
        return
    for (part, target), factor in zip(blocks(logits, targets), _like_blocks(outer, logits, targets), strict=True):
        values = finish(part, scale, softcap)
        gradient = functional.softmax(values, dim=-1)
        gradient.scatter_add_(1, target, torch.full_like(target, -1.0, dtype=gradient.dtype))
        store_gradient(part, gradient * -factor, values, scale, softcap)


def _like_blocks(outer: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
    return [factor for _, factor in blocks(logits, outer)]
