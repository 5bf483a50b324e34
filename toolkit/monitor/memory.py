"""Memory that grows step after step: seen by the minima of windows, told once with its trend."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import psutil
import torch

SAMPLE_EVERY = 10  # optimizer steps
_SAMPLES = 5  # of a window
_WINDOWS = 8  # that must each be above the one before
_LEAST_SHARE = 0.05  # of growth over all windows
_STEADY = 0.6  # each rise is at least this share of the largest: caches that fill rise ever less


class Growth:
    """Watches one figure. A leak raises the minimum of each window by about as much; warm-up slows down, a plateau and
    one rise (an evaluation's buffers) leave windows without any, noise goes down as well as up."""

    def __init__(self) -> None:
        self._window: list[tuple[int, float]] = []
        self._minima: list[tuple[int, float]] = []  # last step of a window, bytes
        self._told = False

    def add(self, step: int, amount: float) -> str | None:
        """Take the bytes in use after `step`; returns the trend in words when it is time to tell, once."""
        if self._told:
            return None
        self._window.append((step, amount))
        if len(self._window) < _SAMPLES:
            return None
        self._minima = [*self._minima, (step, min(used for _, used in self._window))][-_WINDOWS:]
        self._window = []
        if len(self._minima) < _WINDOWS:
            return None
        used = [amount for _, amount in self._minima]
        rises = [later - earlier for earlier, later in pairwise(used)]
        if used[-1] < used[0] * (1 + _LEAST_SHARE) or min(rises) < _STEADY * max(rises):
            return None
        self._told = True
        first, last = self._minima[0][0], self._minima[-1][0]
        each = (used[-1] - used[0]) / (last - first)
        return f"{each / 1e6:.3g} MB per step over steps {first} to {last}, now {used[-1] / 1e9:.3g} GB"


class MemoryWatch:
    """Main memory of this process, and what tensors take on its device, looked at every tenth step."""

    def __init__(self, device: torch.device, tell: Callable[[str], None]) -> None:
        self._process, self._device, self._tell = psutil.Process(), device, tell
        self._has_device = device.type not in ("cpu", "mps")
        self._main, self._on_device = Growth(), Growth()

    def step(self, step: int) -> None:
        """After each optimizer step, when no activations are alive."""
        if step % SAMPLE_EVERY:
            return
        self._add("main memory", self._main, step, self._process.memory_info().rss)
        if self._has_device:
            self._add(f"memory of {self._device}", self._on_device, step, torch.accelerator.memory_allocated())

    def _add(self, what: str, growth: Growth, step: int, amount: float) -> None:
        trend = growth.add(step, amount)
        if trend is not None:
            self._tell(f"{what} grows steadily: {trend}; look for tensors or lists that are kept from step to step")
