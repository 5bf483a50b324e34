"""The table before the first step: everything that was derived, defaulted or decided."""

from __future__ import annotations

import torch

from toolkit.config import RunConfig
from toolkit.data.plan import BatchPlan
from toolkit.data.prepared import PreparedData
from toolkit.data.tokens import TokenRows
from toolkit.layout import Layout
from toolkit.models import describe_dtypes
from toolkit.optim import Schedule
from toolkit.steps import Feed, StreamFeed


def decisions(
    config: RunConfig,
    layout: Layout,
    module: torch.nn.Module,
    data: PreparedData,
    plan: BatchPlan,
    schedule: Schedule,
    feed: Feed | StreamFeed,
    capacity_said: str,
) -> dict[str, str]:
    """Everything that was derived or decided, for people to read before the first step."""
    sizes = [(p.numel(), p.requires_grad) for p in module.parameters()]
    trainable, everything = sum(n for n, grad in sizes if grad), sum(n for n, _ in sizes)
    # Numbers of a quantized matrix are not counted by those that store them.
    quantized = config.model.quantization
    share = f"{trainable:,}" if quantized else f"{trainable:,} of {everything:,}"
    stored = f", matrices of the base in {quantized}" if quantized else ""
    accumulation = "agreed by the ranks in each step of the stream"
    if isinstance(feed, Feed):
        micro_batches = len(feed.micro_batches(plan.row_ids(0)))
        accumulation = f"{micro_batches} micro-batches per device in the first step"
        chosen = layout.choices.accumulation is not None
        accumulation += f" ({micro_batches * layout.dp_size} in all), {'chosen by the layout' if chosen else 'derived'}"
    scaled, smoothing = config.train.learning_rate_scaling, config.train.label_smoothing_factor
    return {
        "model": f"{config.model.name_or_path}, {share} parameters trainable",
        "weights": f"{describe_dtypes(module)}{stored}; mixed precision {layout.mixed_precision}",
        "attention": str(layout.accelerator.unwrap_model(module).model.config._attn_implementation)
        + (", padding-free" if config.train.padding_free else ", padded"),
        "train": "a stream" if data.stream is not None else _size(data.train),
        "eval": _size(data.eval) if data.eval is not None else "none (set data.eval or data.eval_fraction)",
        "layout": "; ".join([layout.describe(), *layout.choices.said()]),
        "global batch": f"{config.train.global_batch_size} rows; one device holds {capacity_said}",
        "accumulation": accumulation,
        "steps": f"{schedule.total_steps} = {_steps_said(config, plan, streaming=data.stream is not None)}",
        "learning rate": f"{schedule.peak:.6g}, {schedule.shape}, {schedule.warmup_steps} warm-up steps"
        + ("" if scaled == "none" else f" ({config.train.learning_rate:g} scaled: {scaled})"),
        **({"label smoothing": f"{smoothing:g}, in training only"} if smoothing else {}),
        "output": str(config.output_dir),
    }


def _steps_said(config: RunConfig, plan: BatchPlan, *, streaming: bool) -> str:
    if config.train.max_steps is None:
        return f"{config.train.epochs:g} epochs x {plan.steps_per_epoch} steps"
    return "train.max_steps" + ("" if streaming else f" ({plan.steps_per_epoch} steps per epoch)")


def _size(rows: TokenRows) -> str:
    share = rows.label_tokens / rows.tokens
    return f"{len(rows):,} rows, {rows.tokens:,} tokens, {rows.label_tokens:,} of them labelled ({share:.0%})"
