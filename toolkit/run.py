"""From a model, data and an objective to a trained, evaluated and exported model: what all recipes share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.attention import choose_attention
from toolkit.config import RunConfig
from toolkit.data.account import Account
from toolkit.data.plan import BatchPlan
from toolkit.data.prepared import PreparedData
from toolkit.data.stream import RowStream
from toolkit.data.tokens import TokenRows
from toolkit.errors import UserError
from toolkit.evaluation import evaluate_loss
from toolkit.export import export_model, set_turn_end
from toolkit.layout import Layout
from toolkit.loop import train
from toolkit.models import check_vocabulary, describe_dtypes
from toolkit.monitor.banner import note, print_table
from toolkit.monitor.precision import share_unchanged, snapshot
from toolkit.monitor.progress import ProgressLog
from toolkit.objectives import Objective, ObjectiveModule
from toolkit.optim import Schedule, build_optimizer, build_schedule
from toolkit.probe import probe_model
from toolkit.run_folder import RunFolder
from toolkit.steps import Feed, StreamFeed, device_capacity


@dataclass(frozen=True)
class Agenda:
    """What happens at which optimizer step (counted from 1)."""

    total_steps: int
    eval_every: int | None

    def evaluates_after(self, step: int) -> bool:
        """At every `eval_every` steps, and at the end."""
        return step == self.total_steps or bool(self.eval_every and step % self.eval_every == 0)


def fine_tune(
    config: RunConfig,
    layout: Layout,
    folder: RunFolder,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: PreparedData,
    objective: Objective,
) -> dict[str, dict[str, float]]:
    """Train `model` on `data`, log to `folder`, leave the finished model there.

    Returns the evaluation before the first step and after the last, as {"before": ..., "after": ...}; empty without
    evaluation rows. Raises UserError for what the layout or the model cannot do, NumericalError for a non-finite step.
    """
    say = note if layout.is_main else _silent
    check_before_training(config, layout, model, tokenizer, data)
    for warning in layout.warnings():
        say(warning)
    new_ends = set_turn_end(model, list(dict.fromkeys([*data.turn_end, tokenizer.eos_token_id])))
    if new_ends:
        say(f"generation config: eos_token_id now includes {new_ends}, which end a turn or the text")

    plan = _plan(config, data)
    total_steps = plan.total_steps(config.train.epochs, config.train.max_steps)
    schedule = build_schedule(config.train, total_steps, say)
    feed, capacity_said = _train_feed(config, layout, model, tokenizer, data)
    eval_feed = None if data.eval is None else _feed(config, layout, model, tokenizer, data.eval)[0]

    module = ObjectiveModule(model, objective)
    optimizer = build_optimizer(module, config.train)
    module, optimizer = layout.accelerator.prepare(module, optimizer)
    if layout.is_main:
        print_table("training", banner(config, layout, module, data, plan, schedule, feed, capacity_said))

    agenda = Agenda(total_steps, config.eval_every)
    evaluations: dict[str, dict[str, float]] = {}
    watched = snapshot(module)
    with ProgressLog(folder.metrics, total_steps, config.log_every, active=layout.is_main) as log:

        def evaluate(step: int, name: str) -> None:
            if eval_feed is not None:
                evaluations[name] = evaluate_loss(layout, module, eval_feed, data.eval_ranges)
                log.evaluation(step, evaluations[name])

        def after_step(step: int) -> None:
            if step == 1 and watched:
                say(share_unchanged(layout, module, watched))
            if agenda.evaluates_after(step):
                evaluate(step, "after")

        evaluate(0, "before")
        train(
            layout,
            module,
            optimizer,
            feed.steps(plan, 0, total_steps),
            schedule=schedule,
            max_grad_norm=config.train.max_grad_norm,
            seed=config.seed,
            record=log.step,
            after_step=after_step,
        )
    if data.stream is not None:
        say(f"train, as far as it was read: {_read_by_all(layout, data.stream)}")
    export_model(layout, module, tokenizer, folder.model)
    if layout.is_main:
        folder.record_files()
    return evaluations


def _plan(config: RunConfig, data: PreparedData) -> BatchPlan:
    rows = len(data.train) if data.mixture is None else data.mixture.rows_per_epoch
    return BatchPlan(rows, config.train.global_batch_size, config.seed, config.data.shuffle, mixture=data.mixture)


def _read_by_all(layout: Layout, stream: RowStream) -> Account:
    """What became of the rows of a stream, over all ranks."""
    read = Account()
    for part in layout.gather_objects([stream.account]):
        read.add(part)
    return read


def _feed(
    config: RunConfig, layout: Layout, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: TokenRows
) -> tuple[Feed, str]:
    """This rank's feed of `rows`, and what one device holds at once in words."""
    hidden_size = model.config.get_text_config().hidden_size
    capacity, said = device_capacity(config.train, int(rows.lengths.max()), hidden_size, layout.device.type)
    padding_free, pad = config.train.padding_free, tokenizer.pad_token_id
    return Feed(rows, capacity, layout.dp_rank, layout.dp_size, padding_free, pad), said


def _train_feed(
    config: RunConfig, layout: Layout, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: PreparedData
) -> tuple[Feed | StreamFeed, str]:
    if data.stream is None:
        return _feed(config, layout, model, tokenizer, data.train)
    hidden_size = model.config.get_text_config().hidden_size
    capacity, said = device_capacity(config.train, config.data.max_length, hidden_size, layout.device.type)
    feed = StreamFeed(
        data.stream,
        config.train.global_batch_size,
        capacity,
        layout.dp_rank,
        layout.dp_size,
        config.train.padding_free,
        int(tokenizer.pad_token_id),  # type: ignore[arg-type]
        int(model.get_input_embeddings().num_embeddings),  # type: ignore[arg-type]
        layout.largest,
    )
    return feed, said


def check_before_training(
    config: RunConfig, layout: Layout, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: PreparedData
) -> None:
    """What can go wrong far from its cause, tried on the real model before the first step. Moves nothing to a device."""
    if len(set(layout.gather_objects([data.fingerprint]))) > 1:
        raise UserError("data: the processes read different rows; are the data files the same on every node?")
    if layout.mixed_precision == "bf16" and model.dtype == torch.bfloat16:
        raise UserError(
            "model.dtype: bfloat16 trains bf16 weights, and mixed_precision: bf16 in the accelerate config keeps fp32 "
            "ones; use model.dtype: float32 (recommended), or a layout with mixed_precision: no"
        )
    largest = max(rows.largest_id for rows in (data.train, data.eval) if rows is not None)
    check_vocabulary(model, tokenizer, largest)
    if config.train.padding_free:
        model.set_attn_implementation(choose_attention(config.model.attn_implementation, layout.device))
    elif config.model.attn_implementation is not None:
        model.set_attn_implementation(config.model.attn_implementation)
    if model.config._attn_implementation != "flash_attention_2":
        # Flash attention runs on the device only, and isolates rows by design; the others are tried here.
        probe_model(model, data.train, padding_free=config.train.padding_free)


def banner(
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
    accumulation = "agreed by the ranks in each step of the stream"
    if isinstance(feed, Feed):
        micro_batches = len(feed.micro_batches(plan.row_ids(0)))
        accumulation = f"{micro_batches} micro-batches per device in the first step"
        accumulation += f" ({micro_batches * layout.dp_size} in all), derived"
    scaled = config.train.learning_rate_scaling
    return {
        "model": f"{config.model.name_or_path}, {trainable:,} of {everything:,} parameters trainable",
        "weights": f"{describe_dtypes(module)}; mixed precision {layout.mixed_precision}",
        "attention": str(layout.accelerator.unwrap_model(module).model.config._attn_implementation)
        + (", padding-free" if config.train.padding_free else ", padded"),
        "train": "a stream" if data.stream is not None else _size(data.train),
        "eval": _size(data.eval) if data.eval is not None else "none (set data.eval or data.eval_fraction)",
        "layout": layout.describe(),
        "global batch": f"{config.train.global_batch_size} rows; one device holds {capacity_said}",
        "accumulation": accumulation,
        "steps": f"{schedule.total_steps} = {_steps_said(config, plan, streaming=data.stream is not None)}",
        "learning rate": f"{schedule.peak:.6g}, {schedule.shape}, {schedule.warmup_steps} warm-up steps"
        + ("" if scaled == "none" else f" ({config.train.learning_rate:g} scaled: {scaled})"),
        "output": str(config.output_dir),
    }


def _steps_said(config: RunConfig, plan: BatchPlan, *, streaming: bool) -> str:
    if config.train.max_steps is None:
        return f"{config.train.epochs:g} epochs x {plan.steps_per_epoch} steps"
    return "train.max_steps" + ("" if streaming else f" ({plan.steps_per_epoch} steps per epoch)")


def _size(rows: TokenRows) -> str:
    share = rows.label_tokens / rows.tokens
    return f"{len(rows):,} rows, {rows.tokens:,} tokens, {rows.label_tokens:,} of them labelled ({share:.0%})"


def _silent(message: str) -> None:
    """What a rank other than the main one says."""
