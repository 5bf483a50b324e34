"""From hidden states to logits: the output head of a model, whole or split over ranks, and pieces of its softmax."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.distributed.tensor import DTensor
from torch.nn import functional
from transformers import PreTrainedModel

from toolkit.data.collate import MicroBatch
from toolkit.parallel.vocabulary import VocabularyShard

# The softmax of a chunk goes through fp32 blocks that stay in a processor's cache.
_BLOCK_BYTES = 2**22


@dataclass(frozen=True)
class OutputHead:
    """How a model turns hidden states into logits: a matrix, and what some families do after it.

    logits = softcap x tanh(scale x (hidden @ weight^T + bias) / softcap); without a softcap, scale x (...).
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    scale: float
    softcap: float | None

    @staticmethod
    def of(model: PreTrainedModel) -> OutputHead:
        """Read the head of a causal language model, with the scalings that Cohere, Granite and Gemma 2 name."""
        config, head = model.config.get_text_config(), model.get_output_embeddings()
        scale = float(getattr(config, "logit_scale", None) or 1.0) / float(
            getattr(config, "logits_scaling", None) or 1.0
        )
        softcap = getattr(config, "final_logit_softcapping", None)
        # Of tied weights take the embedding's name: sharded by transformers, it is the one that FSDP2 gathers.
        tied = getattr(config, "tie_word_embeddings", False)
        weight: Any = model.get_input_embeddings().weight if tied else head.weight
        if hasattr(head, "get_delta_weight") and not head.merged and not head.disable_adapters:  # of peft
            for adapter in head.active_adapters:  # `adapters.attach` has made sure that it is one to be added
                weight = weight + cast(Any, head).get_delta_weight(adapter)
        return OutputHead(weight, getattr(head, "bias", None), scale, float(softcap) if softcap else None)


def hidden_states(model: PreTrainedModel, batch: MicroBatch) -> torch.Tensor:
    """Last hidden states `[batch, seq, hidden]` of the decoder, without the head."""
    return model.get_decoder()(use_cache=False, **batch.model_inputs()).last_hidden_state


def logits_of(hidden: torch.Tensor, head: OutputHead) -> torch.Tensor:
    """Logits `[positions, vocabulary]` in fp32 of a few hidden states `[positions, hidden]`."""
    return finish(functional.linear(hidden, head.weight.to(hidden.dtype), head.bias), head.scale, head.softcap)


def local(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def normalised(
    values: torch.Tensor, targets: torch.Tensor, shard: VocabularyShard
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log normalizer and the target's log probability, `[positions]` both, of this rank's `[positions, size]` logits."""
    normalizer = shard.log_normalizer(values.logsumexp(-1))
    local, here = shard.local_targets(targets[:, None])
    return normalizer, shard.sum((values.gather(1, local) * here)[:, 0]) - normalizer


def store_gradient(
    part: torch.Tensor, gradient: torch.Tensor, values: torch.Tensor, scale: float, softcap: float | None
) -> None:
    """Through the cap and the scale of `OutputHead`, in place of the raw logits."""
    if softcap is not None:
        gradient *= 1.0 - (values / softcap) ** 2
    part.copy_(gradient if scale == 1.0 else gradient * scale)


def finish(logits: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
    """Raw logits in fp32 with the scale and the cap of `OutputHead`."""
    logits = logits.float() if scale == 1.0 else logits.float() * scale
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap


def blocks(logits: torch.Tensor, targets: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Views of a few positions, with their targets as `[positions, 1]`: small on CPUs, everything elsewhere."""
    size = max(1, _BLOCK_BYTES // (4 * logits.shape[1])) if logits.device.type == "cpu" else len(logits)
    return zip(logits.split(size), targets[:, None].split(size), strict=True)
