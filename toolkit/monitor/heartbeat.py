"""Where this rank is: a few words that the loop changes as it goes and the watchdog reads from its own thread."""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple, Protocol

_STEPS = 20  # that medians are taken over


class Beat(Protocol):
    """Told of every phase that begins."""

    def __call__(self, phase: str, step: int | None = None, micro_batch: int | None = None) -> None:
        """phase: start, reference, teacher, restore, data, look, forward, backward, reduce, update, evaluate, save, generate or
        export.
        step and micro_batch count from 1; None leaves the step as it was."""
        ...


class Pulse(NamedTuple):
    """The latest beat. since: `time.monotonic()` of it; beats: how many there were."""

    phase: str
    step: int
    micro_batch: int
    since: float
    beats: int


class StepTimes(NamedTuple):
    """Seconds of one optimizer step on this rank, or their medians over recent steps.

    total: from asking for data to the update. data: waiting for micro-batches. compute: forward and backward without the
    step's last backward, in which a rank waits for the gradients of the others. It is wall time of the Python thread: on a
    GPU it is the time to launch the work, and where parameters are sharded it holds the wait for them.
    """

    total: float
    data: float
    compute: float


class Heartbeat:
    """The latest beat of this process, and how long the phases of its recent steps took.

    Each tuple is replaced as a whole, so that another thread reads without a lock.
    """

    def __init__(self) -> None:
        self.pulse = Pulse("start", 0, 0, time.monotonic(), 0)
        self.steps = 0  # optimizer steps that were timed
        self._recent: tuple[StepTimes, ...] = ()
        self._data = self._compute = 0.0
        self._asked: float | None = None

    def __call__(self, phase: str, step: int | None = None, micro_batch: int | None = None) -> None:
        """See `Beat`."""
        last, now = self.pulse, time.monotonic()
        self._time(last.phase, phase, now - last.since, now)
        self.pulse = Pulse(phase, last.step if step is None else step, micro_batch or 0, now, last.beats + 1)

    def times(self) -> StepTimes | None:
        """Medians over the recent steps, each of its own; None before the first."""
        recent = self._recent
        return StepTimes(*map(statistics.median, zip(*recent, strict=True))) if recent else None

    def _time(self, ended: str, begun: str, seconds: float, now: float) -> None:
        if ended == "data":
            self._data += seconds
        elif ended in ("look", "forward") or (ended == "backward" and begun == "forward"):  # not the last backward
            self._compute += seconds
        if begun == "data":
            self._data = self._compute = 0.0
            self._asked = now
        elif begun == "update" and self._asked is not None:
            times = StepTimes(now - self._asked, self._data, self._compute)
            self._recent, self._asked = (*self._recent, times)[-_STEPS:], None
            self.steps += 1
