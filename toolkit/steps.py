"""Optimizer steps for the loop: the batch plan, cut for this rank and laid out as micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from toolkit.config import TrainConfig
from toolkit.data.collate import MicroBatch, collate
from toolkit.data.plan import BatchPlan
from toolkit.data.rows import Row, RowError
from toolkit.data.split import Capacity, split
from toolkit.data.stream import RowStream
from toolkit.data.tokens import TokenRows
from toolkit.errors import UserError
from toolkit.parallel.choices import Choices
from toolkit.parallel.context import cut_sequence

# What one device is given at once when the recipe does not say: enough tokens to keep it busy, few enough for a laptop.
_ACCELERATOR_TOKENS = 4096
_CPU_TOKENS = 1024


@dataclass(frozen=True)
class Step:
    """One optimizer step as this rank sees it.

    index: counted from 0; row_ids: rows of the whole global batch, the same on every rank; micro_batches: this rank's
    share, as many as on every other rank; epoch: passes over the data when the step is done. looked_at: what the first look
    goes over, None where the objective does not look.
    """

    index: int
    row_ids: np.ndarray
    micro_batches: list[MicroBatch]
    epoch: float
    looked_at: list[MicroBatch] | None = None


@dataclass(frozen=True)
class Feed:
    """Cuts global batches into this rank's micro-batches.

    looked_at: rows that a first look goes over, one for each of `rows`; None where the objective does not look.
    """

    rows: TokenRows
    capacity: Capacity
    dp_rank: int
    dp_size: int
    padding_free: bool
    pad_token_id: int
    context_rank: int = 0
    context_size: int = 1
    looked_at: TokenRows | None = None

    def micro_batches(self, row_ids: np.ndarray) -> list[MicroBatch]:
        """This rank's micro-batches of a global batch; every rank gets the same number."""
        return [batch for _, batch in self.parts(row_ids)]

    def first_look(self, row_ids: np.ndarray) -> list[MicroBatch] | None:
        """The same of what is looked at first."""
        if self.looked_at is None:
            return None
        return replace(self, rows=self.looked_at).micro_batches(row_ids)

    def parts(self, row_ids: np.ndarray) -> list[tuple[np.ndarray, MicroBatch]]:
        """The same, each with the rows that are in it."""
        everywhere = np.arange(len(row_ids))
        mine = split(everywhere, self.rows.lengths[row_ids], self.dp_size, self.capacity)[self.dp_rank]
        return [(row_ids[places], self._batch(row_ids, places)) for places in mine]

    def _batch(self, row_ids: np.ndarray, places: np.ndarray) -> MicroBatch:
        batch = _lay_out(self, self.rows, row_ids[places])
        return replace(batch, known=batch.known.but(places=torch.from_numpy(places)))

    def steps(self, plan: BatchPlan, start: int, stop: int, passed_by: Container[int] = ()) -> Iterator[Step]:
        """Optimizer steps start..stop-1 of the plan, without those `passed_by`."""
        for index in range(start, stop):
            if index in passed_by:
                continue
            row_ids = plan.row_ids(index)
            batches, looked_at = self.micro_batches(row_ids), self.first_look(row_ids)
            yield Step(index, row_ids, batches, plan.epoch_after(index), looked_at)


@dataclass(frozen=True)
class StreamFeed:
    """Takes global batches off a stream, tokenizes this rank's share of each and cuts it into micro-batches.

    How many micro-batches a rank needs shows only after tokenizing, so the ranks agree on the largest number (`agree`),
    with one small collective a step.
    """

    stream: RowStream
    global_batch_size: int
    capacity: Capacity
    dp_rank: int
    dp_size: int
    padding_free: bool
    pad_token_id: int
    embedding_rows: int
    agree: Callable[[int], int]
    context_rank: int = 0
    context_size: int = 1

    def steps(self, plan: BatchPlan, start: int, stop: int, passed_by: Container[int] = ()) -> Iterator[Step]:
        """Optimizer steps start..stop-1 without those `passed_by`; the plan has nothing to say on a stream."""
        batches = self.stream.batches(self.global_batch_size, start)
        for index, (turn, rows) in zip(range(start, stop), batches, strict=False):
            if index in passed_by:
                continue
            first = index * self.global_batch_size
            row_ids = np.arange(first, first + len(rows))
            yield Step(index, row_ids, self._micro_batches(rows[self.dp_rank :: self.dp_size]), float(turn))

    def _micro_batches(self, rows: list[tuple[int, Row | RowError]]) -> list[MicroBatch]:
        tokens = self.stream.tokenize(rows)
        if len(tokens) and tokens.largest_id >= self.embedding_rows:
            raise UserError(f"data.train: token id {tokens.largest_id} >= {self.embedding_rows} embedding rows")
        parts = split(np.arange(len(tokens)), tokens.lengths, 1, self.capacity)[0] if len(tokens) else []
        parts += [np.arange(0)] * (max(1, self.agree(len(parts))) - len(parts))
        return [_lay_out(self, tokens, ids) for ids in parts]


def _lay_out(feed: Feed | StreamFeed, rows: TokenRows, ids: np.ndarray) -> MicroBatch:
    batch = collate(rows, ids, padding_free=feed.padding_free, pad_token_id=feed.pad_token_id)
    if feed.context_size == 1:
        return batch
    return cut_sequence(batch, feed.context_rank, feed.context_size, feed.pad_token_id)


def device_capacity(config: TrainConfig, longest: int, hidden_size: int, device_type: str) -> tuple[Capacity, str]:
    """What one device (`torch.device.type`) holds at once, and a sentence that says where the number comes from.

    longest: tokens of the longest row.

    Raises UserError when the longest row does not fit into train.max_tokens_per_micro_batch.
    """
    tokens, limit = config.max_tokens_per_micro_batch, config.micro_batch_size
    if tokens is not None and longest > tokens:
        raise UserError(
            f"train.max_tokens_per_micro_batch: {tokens} is less than the longest row ({longest} tokens); "
            "raise it, or lower data.max_length"
        )
    if tokens is None and limit is None:
        tokens = max(_CPU_TOKENS if device_type == "cpu" else _ACCELERATOR_TOKENS, longest)
        said = f"at most {tokens} tokens (default; train.max_tokens_per_micro_batch or train.micro_batch_size sets it)"
    else:
        parts = [f"{tokens} tokens" if tokens else "", f"{limit} rows" if limit else ""]
        said = "at most " + " and ".join(filter(None, parts))
    return Capacity(tokens, limit, padded=not config.padding_free, quadratic=12.0 * hidden_size), said


def chosen_capacity(config: TrainConfig, choices: Choices, dp_size: int, derived: Capacity) -> tuple[Capacity, str]:
    """As many micro-batches as the layout file asks for, in place of those that were `derived`, and who said so.

    The global batch stays the recipe's. Raises UserError where the recipe says how to cut it too, and says otherwise.
    """
    count, source, rows = choices.accumulation, choices.accumulation_source, config.global_batch_size
    assert count is not None
    if config.max_tokens_per_micro_batch is not None:
        raise UserError(
            f"{source} is {count} and train.max_tokens_per_micro_batch is {config.max_tokens_per_micro_batch}: both decide "
            "how a global batch is cut; keep one"
        )
    size = config.micro_batch_size
    if size is not None and size * dp_size * count != rows:
        raise UserError(
            f"{source} is {count} and train.micro_batch_size is {size}: on {dp_size} devices that is a global batch of "
            f"{size * dp_size * count} rows, but train.global_batch_size is {rows}; remove one of the three"
        )
    if count * dp_size > rows:
        raise UserError(
            f"{source} is {count}: on {dp_size} devices that is {count * dp_size} micro-batches, but "
            f"train.global_batch_size is {rows} rows; lower it"
        )
    return replace(derived, max_tokens=None, max_rows=None, micro_batches=count), f"what {source} leaves to it"
