"""Low-precision weights swallow small updates; this says how many, after the first step."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from toolkit.layout import Layout


def snapshot(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the trainable weights that are not fp32; empty with fp32 master weights."""
    return {
        name: _local(p).clone()
        for name, p in module.named_parameters()
        if p.requires_grad and p.dtype in (torch.bfloat16, torch.float16)
    }


def share_unchanged(layout: Layout, module: torch.nn.Module, before: dict[str, torch.Tensor]) -> str:
    """Compare with `before`, forget it, and say what share of those weights the first update left as they were."""
    now = dict(module.named_parameters())
    same = sum(int((_local(now[name]) == old).sum()) for name, old in before.items())
    count = sum(old.numel() for old in before.values())
    before.clear()
    all_same, all_count = (value.item() for value in layout.sum(same, count))
    return (
        f"warning: bf16 weights are trained directly (model.dtype): {all_same / all_count:.1%} of them did not change in "
        "step 1, their updates are smaller than bf16 can hold; model.dtype: float32 keeps them"
    )


def _local(parameter: torch.nn.Parameter) -> torch.Tensor:
    data = parameter.detach()
    return data.to_local() if isinstance(data, DTensor) else data
