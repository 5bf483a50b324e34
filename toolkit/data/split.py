"""How a global batch is cut into micro-batches for the devices: pure, computed alike by every rank."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Capacity:
    """What one device holds at once.

    max_tokens: tokens of a micro-batch, padding included when `padded`; None for no limit.
    max_rows: rows of a micro-batch; None for no limit.
    quadratic: row length at which attention costs as much as everything else. A layer spends about 24 hidden^2
        multiply-adds per token outside attention and 2 length hidden inside (causal), so 12 x hidden size.
    micro_batches: cut into exactly this many per device, whatever they hold; None for the least that fits.
    """

    max_tokens: int | None
    max_rows: int | None
    padded: bool = False
    quadratic: float = math.inf
    micro_batches: int | None = None

    def work(self, lengths: np.ndarray) -> np.ndarray:
        """Relative compute of rows of these lengths."""
        return lengths * (1.0 + lengths / self.quadratic)


@dataclass
class _Bin:
    rows: list[int] = field(default_factory=list)
    tokens: int = 0
    longest: int = 0
    work: float = 0.0

    def fits(self, length: int, capacity: Capacity) -> bool:
        if capacity.max_rows is not None and len(self.rows) >= capacity.max_rows:
            return False
        longest = max(self.longest, length)
        tokens = (len(self.rows) + 1) * longest if capacity.padded else self.tokens + length
        return capacity.max_tokens is None or not self.rows or tokens <= capacity.max_tokens

    def add(self, row: int, length: int, work: float) -> None:
        self.rows.append(row)
        self.tokens += length
        self.longest = max(self.longest, length)
        self.work += work


def split(row_ids: np.ndarray, lengths: np.ndarray, slots: int, capacity: Capacity) -> list[list[np.ndarray]]:
    """Cut a global batch into micro-batches, as `result[slot][micro_batch] -> row ids`.

    row_ids, lengths: [rows] of the global batch. Every slot (data-parallel rank) gets the same number of micro-batches,
    the least that fits if `capacity` does not say how many; some may be empty (fillers). Work is balanced within each
    round of micro-batches, where sharded layouts wait for each other, and in total. The first round is the heaviest, so
    that memory runs out at once or never.
    """
    order = np.argsort(-lengths, kind="stable")
    work = capacity.work(lengths)
    rounds = capacity.micro_batches or _least_rounds(lengths, slots, capacity)
    while (bins := _pack(order, lengths, work, slots * rounds, capacity)) is None:
        rounds += 1
    bins.sort(key=lambda b: -b.work)
    result: list[list[np.ndarray]] = [[] for _ in range(slots)]
    total = [0.0] * slots
    for start in range(0, len(bins), slots):
        # The heaviest of this round goes to the slot with the least work so far.
        by_total = sorted(range(slots), key=lambda slot: (total[slot], slot))
        for slot, part in zip(by_total, bins[start : start + slots], strict=True):
            result[slot].append(row_ids[part.rows] if part.rows else row_ids[:0])
            total[slot] += part.work
    return result


def _least_rounds(lengths: np.ndarray, slots: int, capacity: Capacity) -> int:
    rounds = 1
    if capacity.max_tokens is not None:
        rounds = max(rounds, math.ceil(int(lengths.sum()) / (slots * capacity.max_tokens)))
    if capacity.max_rows is not None:
        rounds = max(rounds, math.ceil(len(lengths) / (slots * capacity.max_rows)))
    return rounds


def _pack(
    order: np.ndarray, lengths: np.ndarray, work: np.ndarray, count: int, capacity: Capacity
) -> list[_Bin] | None:
    """Longest row first into the least loaded of `count` bins that has room (Graham's LPT rule); None if one has none."""
    bins = [_Bin() for _ in range(count)]
    heap = [(0.0, index) for index in range(count)]
    for row in order.tolist():
        length, full = int(lengths[row]), []
        while heap and not bins[heap[0][1]].fits(length, capacity):
            full.append(heapq.heappop(heap))
        if not heap:
            return None
        _, index = heap[0]
        bins[index].add(row, length, float(work[row]))
        heapq.heapreplace(heap, (bins[index].work, index))
        for entry in full:
            heapq.heappush(heap, entry)
    return bins
