"""Attention over a padding-free micro-batch: rows lie end to end in one row, and none sees another.

Models get `cu_seq_lens_q` and friends, the keyword arguments that transformers' flash attention reads, so on CUDA an
installed flash attention does it. Everywhere else this file's function runs scaled-dot-product attention once per row:
no mask of size seq x seq is built, no work is spent on pairs of tokens from different rows.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

from toolkit.data.collate import RowLengths

ISOLATED = "isolated_rows"


def isolated_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sequence_lengths: RowLengths | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each row of a padding-free micro-batch.

    query `[1, heads, seq, head_dim]`, key and value `[1, kv_heads, seq, head_dim]`, where seq is the sum of
    `sequence_lengths`. Returns `[1, seq, heads, head_dim]`. Raises ValueError for attention variants that are not plain
    softmax attention (sinks), rather than computing something else.
    """
    if sequence_lengths is None or kwargs.get("s_aux") is not None:
        raise ValueError(
            "padding-free attention needs the row lengths of a micro-batch and a model without attention sinks; "
            "set model.attn_implementation, or train.padding_free: false"
        )
    dtype, on_cpu = value.dtype, value.device.type == "cpu"
    if on_cpu:
        # The backward pass of the CPU kernel takes twice as long in bf16 as in fp32, and autocast would go back to bf16.
        wide = torch.promote_types(dtype, torch.float32)
        query, key, value = query.to(wide), key.to(wide), value.to(wide)
    with torch.autocast("cpu", enabled=False) if on_cpu else contextlib.nullcontext():
        settings: dict[str, Any] = {
            "dropout": dropout, "scaling": scaling, "window": sliding_window, "softcap": softcap
        }  # fmt: skip
        lengths = sequence_lengths.lengths
        outputs = []
        rows: list[Any] = list(zip(*(x.split(lengths, dim=2) for x in (query, key, value)), strict=True))
        for number, row in enumerate(rows):
            if number < len(sequence_lengths.branches):
                first, second = sequence_lengths.branches[number]
                outputs.append(_two_answers(*row, first=first, second=second, **settings))
            else:
                outputs.append(_one_row(*row, **settings))
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous().to(dtype), None


def _two_answers(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, first: int, second: int, **settings: Any
) -> torch.Tensor:
    """A row of two answers to one prompt: the second, from `second` on, sees what comes before `first`, and itself."""
    chosen = _one_row(*(tensor[:, :, :second] for tensor in (query, key, value)), **settings)
    keys, values = (torch.cat([tensor[:, :, :first], tensor[:, :, second:]], dim=2) for tensor in (key, value))
    return torch.cat([chosen, _one_row(query[:, :, second:], keys, values, **settings)], dim=2)


def _one_row(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    dropout: float,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Causal: the last query sees all keys, one before it all but the last, and so on."""
    length, groups, before = key.shape[2], query.shape[1] // key.shape[1], key.shape[2] - query.shape[2]
    windowed = window is not None and length > window
    if not windowed and softcap is None and not before:
        return functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, scale=scaling, is_causal=True, enable_gqa=groups > 1
        )
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    position = torch.arange(length, device=query.device)
    distance = position[before:, None] - position[None, :]
    visible = (distance >= 0) & (distance < (window if window is not None else length))
    if softcap is None:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=visible, dropout_p=dropout, scale=scaling
        )
    # Soft-capped scores (Gemma 2) have no fused kernel: tanh(score / cap) x cap before the mask and the softmax.
    scores = query @ key.transpose(2, 3) * (scaling if scaling is not None else query.shape[-1] ** -0.5)
    scores = (torch.tanh(scores / softcap) * softcap).masked_fill(~visible, float("-inf"))
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return functional.dropout(weights, dropout) @ value


def choose_attention(requested: str | None, device: torch.device) -> str:
    """Name of the attention implementation for padding-free training: the user's, flash attention, or ours."""
    from transformers.utils import is_flash_attn_2_available

    if requested is not None:
        return requested
    return "flash_attention_2" if device.type == "cuda" and is_flash_attn_2_available() else ISOLATED


# Compiled blocks call it as it is: its loop over rows would be compiled anew for every set of lengths.
AttentionInterface.register(ISOLATED, torch.compiler.disable(isolated_attention))
