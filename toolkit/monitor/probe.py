"""How fast a device is by itself: a fixed piece of work, timed while nothing else runs on it."""

from __future__ import annotations

import time

import torch

PROBE_EVERY = 50  # optimizer steps
_SIZE = 1024
_PRODUCTS = 10
_TRIES = 3


def probe(device: torch.device) -> float:
    """Seconds of ten products of 1024 x 1024 matrices, the best of three; some milliseconds and 12 MB on an accelerator.

    No collective is inside, so that a throttled device shows on any layout, however evenly all wait for it.
    """
    matrix = torch.full((_SIZE, _SIZE), 1e-3, device=device)
    best = float("inf")
    for _ in range(_TRIES):
        _finish(device)
        started = time.perf_counter()
        product = matrix
        for _ in range(_PRODUCTS):
            product = product @ matrix
        _finish(device)
        best = min(best, time.perf_counter() - started)
    return best


def _finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
