"""Where this rank is: a few words that the loop changes as it goes and the watchdog reads from its own thread."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol


class Beat(Protocol):
    """Told of every phase that begins."""

    def __call__(self, phase: str, step: int | None = None, micro_batch: int | None = None) -> None:
        """phase: data, forward, backward, reduce, update, evaluate, generate, save, restore, export or start.
        step and micro_batch count from 1; None leaves the step as it was."""
        ...


class Pulse(NamedTuple):
    """The latest beat. since: `time.monotonic()` of it; beats: how many there were."""

    phase: str
    step: int
    micro_batch: int
    since: float
    beats: int


class Heartbeat:
    """The latest beat of this process. One tuple is replaced as a whole, so that reading needs no lock."""

    def __init__(self) -> None:
        self.pulse = Pulse("start", 0, 0, time.monotonic(), 0)

    def __call__(self, phase: str, step: int | None = None, micro_batch: int | None = None) -> None:
        """See `Beat`."""
        last = self.pulse
        self.pulse = Pulse(
            phase, last.step if step is None else step, micro_batch or 0, time.monotonic(), last.beats + 1
        )
