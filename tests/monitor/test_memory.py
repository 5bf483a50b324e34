"""Steady growth of memory is told once; everything else that memory does is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch

from toolkit.monitor.memory import SAMPLE_EVERY, Growth, MemoryWatch

GB = 1e9


def told(series: Callable[[int], float], steps: int = 2000) -> list[str]:
    growth = Growth()
    said = [growth.add(step, series(step)) for step in range(SAMPLE_EVERY, steps + 1, SAMPLE_EVERY)]
    return [text for text in said if text is not None]


def noise(step: int, amount: float = 0.1 * GB) -> float:
    return random.Random(step).random() * amount


@pytest.mark.parametrize(
    "series",
    [
        lambda step: 2 * GB + 1e6 * step,
        lambda step: 2 * GB + 2e6 * step + noise(step),
        lambda step: 2 * GB + (1e6 * (step - 600) if step > 600 else 0.0),
        lambda step: 2 * GB + 1e6 * step + (GB if step > 400 else 0.0),
    ],
    ids=["leak", "leak-with-noise", "leak-that-begins-late", "leak-and-evaluation"],
)
def test_a_leak_is_told_once_with_its_trend(series) -> None:
    said = told(series)
    assert len(said) == 1
    rate = float(said[0].split(" MB per step")[0])
    assert 0.8 < rate < 2.2
    assert "over steps" in said[0]


@pytest.mark.parametrize(
    "series",
    [
        lambda step: 2 * GB,
        lambda step: 2 * GB + noise(step, GB),
        lambda step: 4 * GB * (1 - math.exp(-step / 150)),
        lambda step: 1e8 * math.log(step) + GB,
        lambda step: 2 * GB + min(step, 200) * 5e6,
        lambda step: 2 * GB + (GB if step > 500 else 0.0),
        lambda step: 2 * GB + (step % 100) * 1e7,
        lambda step: 2 * GB + GB * (step // 500),
        lambda step: 100 * GB + 1e6 * step,
    ],
    ids=["flat", "noise", "warm-up", "logarithm", "plateau", "evaluation", "sawtooth", "stairs", "a-small-share"],
)  # fmt: skip
def test_what_is_no_leak_is_not_told(series) -> None:
    assert told(series) == []


def test_main_memory_is_looked_at_every_tenth_step(monkeypatch) -> None:
    said: list[str] = []
    watch = MemoryWatch(torch.device("cpu"), said.append)
    calls = []

    class Info:
        @property
        def rss(self) -> float:
            calls.append(1)
            return GB + 1e7 * len(calls)

    monkeypatch.setattr(watch._process, "memory_info", Info)
    for step in range(1, 1001):
        watch.step(step)
    assert len(calls) == 100
    assert len(said) == 1
    assert said[0].startswith("main memory grows steadily: 1 MB per step over steps ")
