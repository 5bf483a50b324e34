"""How long collectives take over message sizes, and the line latency + bytes / bandwidth through these times.

Sizes and bandwidths are those of nccl-tests, https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md: the size
of an all-gather is that of its whole output, of a reduce-scatter that of its whole input.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import distributed

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
KIB, MIB, GIB = 1024, 1024**2, 1024**3
CPU_SIZES = (8 * KIB, 64 * KIB, 512 * KIB, 4 * MIB, 16 * MIB, 64 * MIB)
ACCELERATOR_SIZES = (8 * KIB, 64 * KIB, 512 * KIB, 4 * MIB, 32 * MIB, 256 * MIB, GIB)
_REWEIGHTINGS, _LEAST_SECONDS = 20, 1e-9
_ROUNDS = 5
Group = distributed.ProcessGroup | None
_MOST_CALLS = 20  # in a round


@dataclass(frozen=True)
class Timing:
    """One size. bytes: the message; seconds: of one call, the median of several rounds, each that of the slowest rank."""

    bytes: int
    seconds: float


@dataclass(frozen=True)
class Line:
    """seconds = latency + bytes / bandwidth. Bandwidth in bytes per second, of the message ("algbw")."""

    latency: float
    bandwidth: float

    def seconds(self, amount: float, messages: int = 1) -> float:
        """To send `amount` bytes in so many messages."""
        return messages * self.latency + amount / self.bandwidth


@dataclass(frozen=True)
class Measured:
    """One collective in one group of ranks. cut: the largest sizes were left out for want of time."""

    group: str
    operation: str
    ranks: list[int]
    timings: list[Timing]
    line: Line
    cut: bool

    def bus_bandwidth(self, timing: Timing) -> float:
        """Bytes per second that every rank's link carries at this size, as nccl-tests defines it."""
        return timing.bytes / timing.seconds * bus_factor(self.operation, len(self.ranks))


def bus_factor(operation: str, ranks: int) -> float:
    """Bytes that cross a rank's link for each byte of the message: 2(n-1)/n for all-reduce, (n-1)/n for the others."""
    share = (ranks - 1) / ranks
    return 2 * share if operation == "all_reduce" else share


def fit(timings: Sequence[Timing]) -> Line:
    """The least-squares line through (bytes, seconds), each weighted by 1/seconds², the seconds of the line itself.

    So *relative* errors are least: sizes span five orders of magnitude, and in plain seconds only the largest would count.
    The line's seconds and not the measured ones, since with these a time that is too short by chance would count more than
    one that is too long (iteratively reweighted least squares, McCullagh & Nelder, Generalized Linear Models, 1989, 8.3).
    Neither latency nor the time per byte can be negative; where one would be, the other alone is fitted.
    """
    seconds, line = [t.seconds for t in timings], Line(0.0, 1.0)
    for _ in range(_REWEIGHTINGS):
        line = _weighted_line(timings, [1 / s**2 for s in seconds])
        seconds = [max(line.seconds(t.bytes), _LEAST_SECONDS) for t in timings]
    return line


def _weighted_line(timings: Sequence[Timing], weights: Sequence[float]) -> Line:
    w = sum(weights)
    wx = sum(g * t.bytes for g, t in zip(weights, timings, strict=True))
    wxx = sum(g * t.bytes**2 for g, t in zip(weights, timings, strict=True))
    wy = sum(g * t.seconds for g, t in zip(weights, timings, strict=True))
    wxy = sum(g * t.bytes * t.seconds for g, t in zip(weights, timings, strict=True))
    spread = w * wxx - wx**2
    if spread <= 1e-12 * w * wxx:  # one size only: all of its time counts as bandwidth
        return Line(0.0, wxx / wxy)
    per_byte = (w * wxy - wx * wy) / spread
    latency = (wy - per_byte * wx) / w
    if latency < 0:
        latency, per_byte = 0.0, wxy / wxx
    if per_byte <= 0:
        latency, per_byte = wy / w, 0.0
    return Line(latency, 1 / per_byte if per_byte > 0 else float("inf"))


def measure(name: str, ranks: list[int], group: Group, device: torch.device, seconds: float) -> list[Measured]:
    """Time all operations in `group`, whose members all call this. seconds: for all of them together, about.

    group: None for all ranks. Every member measures the same sizes equally often: that is decided by the slowest.
    """
    sizes = CPU_SIZES if device.type == "cpu" else ACCELERATOR_SIZES
    found = []
    for operation in OPERATIONS:
        share = seconds / len(OPERATIONS)
        timings, cut = _time_sizes(operation, sizes, group, len(ranks), device, share)
        found.append(Measured(name, operation, ranks, timings, fit(timings), cut))
    return found


def _time_sizes(
    operation: str,
    sizes: Sequence[int],
    group: Group,
    ranks: int,
    device: torch.device,
    budget: float,
) -> tuple[list[Timing], bool]:
    timings: list[Timing] = []
    spent = 0.0
    for index, asked in enumerate(sizes):
        if timings:
            # At least linear growth: warm-up and two rounds of this size must fit what is left.
            expected = timings[-1].seconds * asked / timings[-1].bytes
            if spent + 4 * expected > budget and len(timings) >= 2:
                return timings, True
        call, amount = prepare(operation, asked, group, ranks, device)
        call()  # the first one makes connections
        warm = _slowest(_timed(call, 2, device), group, device)
        left = (budget - spent) / (len(sizes) - index) - 2 * warm
        calls = max(1, min(_MOST_CALLS, int(left / _ROUNDS / warm)))
        rounds = [_slowest(_timed(call, calls, device), group, device) for _ in range(_ROUNDS)]
        timings.append(Timing(amount, statistics.median(rounds)))
        spent += 2 * warm + calls * sum(rounds)
    return timings, False


def prepare(
    operation: str, amount: int, group: Group, ranks: int, device: torch.device
) -> tuple[Callable[[], object], int]:
    """One call of a collective on fp32 buffers that are made here, and the bytes of its message: `amount`, or a little less
    where the ranks do not divide it."""
    each = max(1, amount // 4 // ranks)
    whole = torch.zeros(each * ranks, dtype=torch.float32, device=device)
    part = torch.zeros(each, dtype=torch.float32, device=device)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: distributed.all_reduce(whole, group=group),
        "all_gather": lambda: distributed.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: distributed.reduce_scatter_tensor(part, whole, group=group),
    }
    return calls[operation], 4 * each * ranks


def _timed(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """Seconds a call takes on this rank, the mean of `calls`."""
    _finish(device)
    started = time.perf_counter()
    for _ in range(calls):
        call()
    _finish(device)
    return (time.perf_counter() - started) / calls


def _slowest(seconds: float, group: Group, device: torch.device) -> float:
    """The largest of all members' values, on all of them; they leave it together."""
    value = torch.tensor(seconds, dtype=torch.float32, device=device)
    distributed.all_reduce(value, op=distributed.ReduceOp.MAX, group=group)
    return float(value.item())


def _finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
