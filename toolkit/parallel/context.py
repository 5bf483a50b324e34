"""Context parallelism: the devices of a group hold consecutive parts of the same rows, for rows too long for one device.

Everything in a transformer but attention works on each position by itself. Around attention an all-to-all exchanges parts
of the sequence for parts of the heads, so that each device attends over whole rows with its share of the heads, and a second
one brings the results back (DeepSpeed-Ulysses, https://arxiv.org/abs/2309.14509). Any attention can stand between the two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_to_all_single
from transformers import AttentionInterface, PretrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from toolkit.data.collate import IGNORE, MicroBatch
from toolkit.errors import UserError


def check_context_parallel(config: PretrainedConfig, size: int, *, padding_free: bool) -> None:
    """Raises UserError for heads that `size` devices cannot share."""
    text = config.get_text_config()
    heads = int(text.num_attention_heads)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    if not padding_free:
        raise UserError(
            "parallelism_config_cp_size: rows are cut where they lie end to end; set train.padding_free: true"
        )
    if heads % size or (kv_heads % size and size % kv_heads):
        raise UserError(
            f"parallelism_config_cp_size: {size} devices cannot share {heads} attention heads and {kv_heads} key-value heads "
            f"of {config.model_type} evenly; use a size that divides {heads}, and divides {kv_heads} or is a multiple of it"
        )


def cut_sequence(batch: MicroBatch, rank: int, size: int, pad_token_id: int) -> MicroBatch:
    """Part `rank` of `size` of a padding-free micro-batch; the borders of its rows stay those of the whole.

    The whole is filled up to a multiple of `size` with a row that is learned nothing from.
    """
    assert batch.sequence_lengths is not None
    assert batch.cu_seq_lens is not None
    length = batch.input_ids.shape[1]
    missing = -length % size
    if missing:
        batch = replace(
            batch,
            input_ids=_append(batch.input_ids, torch.full((missing,), pad_token_id)),
            targets=_append(batch.targets, torch.full((missing,), IGNORE)),
            position_ids=_append(batch.position_ids, torch.arange(missing)),
            sequence_lengths=[*batch.sequence_lengths, missing],
            cu_seq_lens=torch.cat([batch.cu_seq_lens, batch.cu_seq_lens[-1:] + missing]),
        )
    part = (length + missing) // size
    start, stop = rank * part, (rank + 1) * part
    targets = batch.targets[:, start:stop]
    return replace(
        batch,
        input_ids=batch.input_ids[:, start:stop],
        targets=targets,
        position_ids=batch.position_ids[:, start:stop],
        tokens=max(0, min(batch.tokens, stop) - start),
        label_tokens=int((targets != IGNORE).sum()),
    )


def split_attention(inner: str, group: dist.ProcessGroup) -> str:
    """Register attention over the whole sequence of a group as an implementation of transformers; returns its name.

    inner: the implementation that does it for each device's share of the heads.
    """
    attend = ALL_ATTENTION_FUNCTIONS[inner]

    def attention(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        """query `[1, heads, part, head_dim]` of this device's part of the sequence; returns `[1, part, heads, head_dim]`."""
        size = _size(group)
        if key.shape[1] % size:  # fewer key-value heads than devices: each gets one, some the same
            key, value = (t.repeat_interleave(size // key.shape[1], dim=1) for t in (key, value))
        whole = [_parts_to_heads(tensor, group) for tensor in (query, key, value)]
        output, _ = attend(module, *whole, mask, **kwargs)
        return _heads_to_parts(output, group), None

    name = f"{inner}_over_{_size(group)}_devices"
    AttentionInterface.register(name, torch.compiler.disable(attention))
    return name


def _parts_to_heads(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """`[1, heads, part, dim]` of all heads to `[1, heads / size, seq, dim]` of the whole sequence."""
    size, (_, heads, part, dim) = _size(group), tensor.shape
    sent = tensor.reshape(size, heads // size, part, dim).contiguous()
    received = all_to_all_single(torch.empty_like(sent), sent, group=group)
    return received.transpose(0, 1).reshape(1, heads // size, size * part, dim)


def _heads_to_parts(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """`[1, seq, heads / size, dim]` to `[1, part, heads, dim]`."""
    size, (_, length, heads, dim) = _size(group), tensor.shape
    sent = tensor.reshape(size, length // size, heads, dim).contiguous()
    received = all_to_all_single(torch.empty_like(sent), sent, group=group)
    return received.permute(1, 0, 2, 3).reshape(1, length // size, size * heads, dim)


def _size(group: dist.ProcessGroup) -> int:
    return dist.get_world_size(group)


def _append(tensor: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, more[None].to(tensor)], dim=1)
