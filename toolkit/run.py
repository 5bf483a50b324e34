"""From a model, data and an objective to a trained, evaluated and exported model: what all recipes share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.checkpoint.record import describe, tell_changes
from toolkit.checkpoint.save import SmallFiles, check_disk
from toolkit.checkpoint.tensors import tensor_bytes
from toolkit.checks import check_before_training
from toolkit.config import RunConfig
from toolkit.course import Course, Training
from toolkit.data.account import Account
from toolkit.data.collate import collate
from toolkit.data.plan import BatchPlan
from toolkit.data.prepared import PreparedData
from toolkit.data.split import Capacity
from toolkit.data.stream import RowStream
from toolkit.data.tokens import TokenRows
from toolkit.errors import UserError
from toolkit.export import export_model, save_description, set_turn_end
from toolkit.layout import Layout
from toolkit.models import embedding_rows
from toolkit.monitor.banner import print_table
from toolkit.monitor.decisions import decisions
from toolkit.monitor.gradient_log import GradientLog, names_of
from toolkit.monitor.progress import ProgressLog
from toolkit.objectives import Objective, ObjectiveModule
from toolkit.optim import build_schedule
from toolkit.parallel.spread import spread
from toolkit.start import Run
from toolkit.steps import Feed, StreamFeed, chosen_capacity, device_capacity
from toolkit.verify import Changes

# Puts to the rows of each feed, by its name, what can be known before the first step: of the model as it starts, of a teacher.
Annotate = Callable[[torch.nn.Module, Mapping[str, Feed]], dict[str, Feed]]


def fine_tune(
    run: Run,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: PreparedData,
    objective: Objective,
    annotate: Annotate | None = None,
) -> dict[str, dict[str, float]]:
    """Train `model` on `data`, or go on where `run.checkpoint` is, log to the run's folder, leave the finished model there.

    annotate: called before the first step and before a checkpoint is read, with the module and what it is fed.
    Returns the evaluation before the first step and after the last, as {"before": ..., "after": ...}; empty without
    evaluation rows. Raises UserError for what the layout or the model cannot do, NumericalError for a step that must not
    be taken, Stopped when the process was asked to end and has saved.
    """
    config, layout, say = run.config, run.layout, run.say
    run.beat("start")
    check_before_training(run, model, tokenizer, data)
    _warn_and_end_turns(run, model, tokenizer, data)

    plan = _plan(config, data)
    total_steps = plan.total_steps(config.train.epochs, config.train.max_steps)
    schedule = build_schedule(config.train, total_steps, say)
    feed, capacity_said = _train_feed(config, layout, model, tokenizer, data)
    eval_feed = None if data.eval is None else _feed(config, layout, model, tokenizer, data.eval)[0]

    module, optimizer = spread(layout, model, objective, config.train)
    changes = Changes(layout.accelerator.unwrap_model(module))
    names = names_of(layout.accelerator.unwrap_model(module), optimizer)
    described = describe(run, data, total_steps)
    if run.checkpoint is not None:
        tell_changes(run, described)
    if layout.is_main:
        print_table("training", decisions(config, layout, module, data, plan, schedule, feed, capacity_said))

    def small_files(folder: Path) -> None:
        save_description(model, tokenizer, folder / "model")

    _check_disk(run, module, optimizer, small_files)
    padding_free, pad = config.train.padding_free, tokenizer.pad_token_id
    rehearse(layout, module, optimizer, data.train, padding_free=padding_free, pad_token_id=pad)

    if annotate is not None:
        feed, eval_feed = _annotated(annotate, module, feed, eval_feed)

    start = 0 if run.checkpoint is None else run.checkpoint.step
    gradient_log = None
    if config.log_gradient_norms:
        gradient_log = GradientLog(run.folder.gradient_norms, *names, start=start, active=layout.is_main)
    with ProgressLog(run.folder.metrics, total_steps, config.log_every, start=start, active=layout.is_main) as log:
        training = Training(
            run, module, optimizer, plan, feed, eval_feed, schedule, data, log, gradient_log, described, small_files
        )
        evaluations = Course(training).run()
    if data.stream is not None:
        data.stream.read_by_all.add(_read_by_all(layout, data.stream))
        say(f"train, as far as it was read: {data.stream.read_by_all}")
    _leave_model(run, module, tokenizer, changes)
    return evaluations


def _annotated(
    annotate: Annotate, module: torch.nn.Module, feed: Feed | StreamFeed, eval_feed: Feed | None
) -> tuple[Feed, Feed | None]:
    if isinstance(feed, StreamFeed):
        raise UserError("data.streaming: this recipe looks at all rows before the first step; set it to false")
    feeds = annotate(module, {"training": feed} if eval_feed is None else {"training": feed, "evaluation": eval_feed})
    return feeds["training"], feeds.get("evaluation")


def _warn_and_end_turns(
    run: Run, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: PreparedData
) -> None:
    """Say what the layout cannot do well, and let generation stop where answers end."""
    for warning in run.layout.warnings():
        run.say(warning)
    new_ends = set_turn_end(model, list(dict.fromkeys([*data.turn_end, tokenizer.eos_token_id])))
    if new_ends:
        run.say(f"generation config: eos_token_id now includes {new_ends}, which end a turn or the text")


def _leave_model(run: Run, module: ObjectiveModule, tokenizer: PreTrainedTokenizerBase, changes: Changes) -> None:
    """The finished model in the run's folder, after a look at what training has changed."""
    run.stop.finishing()
    run.beat("export")
    run.layout.shard_again(module)
    changes.tell(run.layout, run.layout.accelerator.unwrap_model(module), run.say)
    export_model(run.layout, module, tokenizer, run.folder.model)
    if run.layout.is_main:
        run.folder.record_files()


def _check_disk(run: Run, module: torch.nn.Module, optimizer: torch.optim.Optimizer, small_files: SmallFiles) -> None:
    """Room for checkpoints, where any are to be written, and a dry save of all that is small."""
    size = tensor_bytes(run.layout.accelerator.unwrap_model(module), optimizer)
    run.layout.on_main(lambda: check_disk(run.folder.path, size, run.config.checkpoint, small_files, run.say))


def rehearse(
    layout: Layout,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    rows: TokenRows,
    *,
    padding_free: bool,
    pad_token_id: int,
) -> None:
    """A forward and backward without a row, on all ranks, which changes nothing.

    DDP arranges its gradient buckets by the order of its first backward and sums them in that arrangement from then on.
    With a rehearsal a resumed run has it before its first step, as the uninterrupted one had, so that sums over three or
    more ranks are the same to the bit.
    """
    if layout.dp_size == 1 or layout.is_fsdp:
        return
    filler = collate(rows, np.arange(0), padding_free=padding_free, pad_token_id=pad_token_id).to(layout.device)
    module.train()
    for _ in range(2):  # the second forward moves to the new buckets
        with layout.micro_batch(module, last=True):
            layout.accelerator.backward(module(filler).loss_sum)
    layout.clear_gradients(module, optimizer)


def _plan(config: RunConfig, data: PreparedData) -> BatchPlan:
    rows = len(data.train) if data.mixture is None else data.mixture.rows_per_epoch
    return BatchPlan(rows, config.train.global_batch_size, config.seed, config.data.shuffle, mixture=data.mixture)


def _read_by_all(layout: Layout, stream: RowStream) -> Account:
    """What became of the rows of a stream, over all ranks."""
    read = Account()
    for part in layout.gather_objects([stream.account]):
        read.add(part)
    return read


def _capacity(config: RunConfig, layout: Layout, model: PreTrainedModel, longest: int) -> tuple[Capacity, str]:
    """What a micro-batch may hold, whose longest row has `longest` tokens, and where the number comes from."""
    hidden_size, parts = model.config.get_text_config().hidden_size, layout.choices.context
    capacity, said = device_capacity(config.train, -(-longest // parts), hidden_size, layout.device.type)
    if parts > 1 and capacity.max_tokens is not None:
        capacity = replace(capacity, max_tokens=capacity.max_tokens * parts)
        said += f", and {parts} devices share a micro-batch"
    return capacity, said


def _feed(
    config: RunConfig, layout: Layout, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: TokenRows
) -> tuple[Feed, str]:
    """This rank's feed of `rows`, and what one device holds at once in words."""
    capacity, said = _capacity(config, layout, model, int(rows.lengths.max()))
    padding_free, pad = config.train.padding_free, tokenizer.pad_token_id
    part = (layout.context_rank, layout.choices.context)
    return Feed(rows, capacity, layout.dp_rank, layout.dp_size, padding_free, pad, *part), said


def _train_feed(
    config: RunConfig, layout: Layout, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: PreparedData
) -> tuple[Feed | StreamFeed, str]:
    if data.stream is None:
        derived, said = _feed(config, layout, model, tokenizer, data.train)
        if layout.choices.accumulation is None:
            return derived, said
        capacity, said = chosen_capacity(config.train, layout.choices, layout.dp_size, derived.capacity)
        return replace(derived, capacity=capacity), said
    capacity, said = _capacity(config, layout, model, config.data.max_length)
    if layout.choices.accumulation is not None:
        capacity, said = chosen_capacity(config.train, layout.choices, layout.dp_size, capacity)
    feed = StreamFeed(
        data.stream,
        config.train.global_batch_size,
        capacity,
        layout.dp_rank,
        layout.dp_size,
        config.train.padding_free,
        int(tokenizer.pad_token_id),  # type: ignore[arg-type]
        embedding_rows(model),
        layout.largest,
        layout.context_rank,
        layout.choices.context,
    )
    return feed, said
