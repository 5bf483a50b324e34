"""How the rows of the first optimizer steps lie end to end in micro-batches, on each device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from toolkit.config import RunConfig
from toolkit.data.plan import BatchPlan
from toolkit.data.split import split
from toolkit.errors import UserError
from toolkit.inspect.collect import Part
from toolkit.inspect.scan import runs
from toolkit.steps import device_capacity

_MOST_STRIPS = 16


@dataclass(frozen=True)
class LaidRow:
    """One row in a micro-batch. learnt: [start, end] of its supervised stretches, in tokens from the row's start.
    padding: tokens that fill it up to the longest row, where train.padding_free is false."""

    place: str
    tokens: int
    supervised: int
    padding: int
    learnt: list[list[int]]


@dataclass(frozen=True)
class MicroBatchFigures:
    """One micro-batch. step, micro_batch: counted from 1; device: data-parallel rank, from 0. No rows: a filler."""

    step: int
    device: int
    micro_batch: int
    tokens: int
    supervised: int
    rows: list[LaidRow]


@dataclass(frozen=True)
class Layout:
    """The first micro-batches. capacity: tokens one device takes at once, None without a limit. problem: why there are
    none. hidden: micro-batches of these steps that are not listed. padded: rows are filled up to the longest."""

    devices: int
    global_batch_size: int
    steps_per_epoch: int
    total_steps: int
    capacity: int | None
    capacity_said: str
    micro_batches: list[MicroBatchFigures]
    hidden: int
    padded: bool
    problem: str | None


def first_micro_batches(
    config: RunConfig, part: Part, *, hidden_size: int | None, devices: int, device_type: str, steps: int = 2
) -> Layout:
    """The micro-batches of the first optimizer steps, cut exactly as a run on `devices` devices cuts them.

    hidden_size: of the model; without it rows are balanced by tokens alone, and may lie otherwise than in the run.
    """
    plan = BatchPlan(len(part.rows), config.train.global_batch_size, config.seed, config.data.shuffle)
    total = plan.total_steps(config.train.epochs, config.train.max_steps)
    shape = (devices, config.train.global_batch_size, plan.steps_per_epoch, total)
    padded = not config.train.padding_free
    try:
        capacity, said = device_capacity(config.train, int(part.rows.lengths.max()), hidden_size or 1, device_type)
    except UserError as error:
        return Layout(*shape, config.train.max_tokens_per_micro_batch, "", [], 0, padded, str(error))
    if hidden_size is None:
        capacity = replace(capacity, quadratic=math.inf)
    found = []
    for step in range(min(steps, total)):
        row_ids = plan.row_ids(step)
        slots = split(row_ids, part.rows.lengths[row_ids], devices, capacity)
        for number in range(len(slots[0])):
            for device, mine in enumerate(slots):
                rows = [_laid(part, int(row)) for row in mine[number]]
                found.append(_micro_batch(step, device, number, rows, padded))
    return Layout(
        *shape, capacity.max_tokens, said, found[:_MOST_STRIPS], max(0, len(found) - _MOST_STRIPS), padded, None
    )


def _micro_batch(step: int, device: int, number: int, rows: list[LaidRow], padded: bool) -> MicroBatchFigures:
    longest = max((row.tokens for row in rows), default=0)
    if padded:
        rows = [replace(row, padding=longest - row.tokens) for row in rows]
    tokens, supervised = sum(row.tokens for row in rows), sum(row.supervised for row in rows)
    return MicroBatchFigures(step + 1, device, number + 1, tokens, supervised, rows)


def _laid(part: Part, row: int) -> LaidRow:
    mask = part.rows.labels(row) != -100
    return LaidRow(part.place(row), len(mask), int(mask.sum()), 0, [[start, end] for start, end in runs(mask)])
