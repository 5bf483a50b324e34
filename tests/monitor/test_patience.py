"""How long the watchdog waits for a rank."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from toolkit.config import WatchConfig
from toolkit.monitor.heartbeat import Heartbeat
from toolkit.monitor.watchdog import Watchdog


@pytest.mark.parametrize(
    ("mine", "other", "minutes"),
    [
        (("start", 0), None, 60),
        (("start", 0), "start", 60),
        (("data", 1), "start", 60),  # its first collective is still to come
        (("data", 1), "data", 10),
        (("data", 2), "start", 10),  # it has made a step since it was last seen
        (("forward", 2), None, 10),
    ],
)
def test_a_rank_is_given_longer_until_all_have_made_a_step(
    mine: tuple[str, int], other: str | None, minutes: int
) -> None:
    accelerator = SimpleNamespace(process_index=0, num_processes=2)
    layout = SimpleNamespace(
        accelerator=accelerator, is_fsdp=False, device=torch.device("cpu"), gather_objects=lambda items: items * 2
    )
    beat = Heartbeat()
    watch = Watchdog(WatchConfig(hang_timeout=10.0), layout, beat, Path(), print)  # type: ignore[arg-type]
    beat(*mine)
    assert watch._allowed(None if other is None else {"phase": other}) == 60 * minutes
