"""How long collectives take over message sizes, and the line latency + bytes / bandwidth through these times.

Sizes and bandwidths are those of nccl-tests, https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md: the size
of an all-gather is that of its whole output, of a reduce-scatter that of its whole input.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import distributed

# torch 2.13 has new names for these two and warns of the old ones, which are all that earlier releases have.
_all_gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
_reduce_scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
KIB, MIB, GIB = 1024, 1024**2, 1024**3
CPU_SIZES = (8 * KIB, 64 * KIB, 512 * KIB, 4 * MIB, 16 * MIB, 64 * MIB)
ACCELERATOR_SIZES = (8 * KIB, 64 * KIB, 512 * KIB, 4 * MIB, 32 * MIB, 256 * MIB, GIB)
_STEPS, _THIRDS = 180, 80  # of the search for the best line: 20 steps a decade, then thirds until it is exact
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
    """The line through (bytes, seconds) whose logarithms are nearest to the measured ones by least squares.

    So *relative* errors are least, and a time twice too long counts as much as one half too short: sizes span five orders of
    magnitude, and in plain seconds only the largest would count. With seconds = b (r + bytes), b follows from r, and the
    best r = latency x bandwidth is looked for between 0 and ten times the largest message; neither part can be negative.
    """
    largest = max(t.bytes for t in timings)
    steps = [0.0, *(largest * 10 ** (1 - 9 * k / _STEPS) for k in range(_STEPS, -1, -1))]
    errors = [_log_error(timings, r)[0] for r in steps]
    best = min(range(len(steps)), key=lambda k: (errors[k] > errors[0] - 1e-12, errors[k]))
    low, high = steps[max(best - 1, 0)], steps[min(best + 1, _STEPS)]
    for _ in range(_THIRDS if best else 0):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if _log_error(timings, left)[0] < _log_error(timings, right)[0] else (left, high)
    r = (low + high) / 2 if best else 0.0
    per_byte = math.exp(_log_error(timings, r)[1])
    return Line(r * per_byte, 1 / per_byte)


def _log_error(timings: Sequence[Timing], r: float) -> tuple[float, float]:
    """For seconds = b (r + bytes): the sum of squared errors of the logarithms with the best b, and log b."""
    logs = [math.log(t.seconds / (r + t.bytes)) for t in timings]
    mean = sum(logs) / len(logs)
    return sum((one - mean) ** 2 for one in logs), mean


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
        "all_gather": lambda: _all_gather(whole, part, group=group),
        "reduce_scatter": lambda: _reduce_scatter(part, whole, group=group),
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
