"""How long the watchdog waits for a rank."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from toolkit.config import WatchConfig
from toolkit.monitor.heartbeat import Heartbeat
from toolkit.monitor.watchdog import Watchdog

STEP = [("data", 1), ("forward", 1), ("backward", 1), ("reduce", 1), ("update", 1)]


@pytest.mark.parametrize(
    ("mine", "other", "minutes"),
    [
        ([], None, 60),
        ([], "start", 60),
        ([("restore", 40)], "start", 60),  # a resumed run; the other may still be reading weights
        (STEP[:-1], "start", 60),  # the sum of the losses, in which all meet, is still to come
        (STEP[:-1], "data", 10),
        (STEP, "start", 10),
        (STEP, None, 10),
    ],
)
def test_a_rank_is_given_longer_until_all_have_made_a_step(
    mine: list[tuple[str, int]], other: str | None, minutes: int
) -> None:
    accelerator = SimpleNamespace(process_index=0, num_processes=2)
    layout = SimpleNamespace(
        accelerator=accelerator, is_fsdp=False, device=torch.device("cpu"), gather_objects=lambda items: items * 2
    )
    beat = Heartbeat()
    watch = Watchdog(WatchConfig(hang_timeout=10.0), layout, beat, Path(), print)  # type: ignore[arg-type]
    for phase, step in mine:
        beat(phase, step)
    assert watch._allowed(None if other is None else {"phase": other}) == 60 * minutes
