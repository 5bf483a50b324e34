"""The runs that these tests make, and the curve that they must follow."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.demo import ROOT, demo_flags

STEPS = 60
LAUNCH = [sys.executable, "-c", "from toolkit.cli import main; main()", "launch", "sft", "--layout", "ddp"]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "random", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT),
}  # fmt: skip


def flags(folder: Path, **more: object) -> list[str]:
    never = {"checkpoint.save_every": 1000, "checkpoint.save_every_minutes": 0}
    return demo_flags(**{"train.max_steps": STEPS, **never, "output_dir": folder, **more})


def curve(folder: Path) -> list[tuple[int, float, float, float]]:
    """Step, loss, gradient norm and learning rate of every optimizer step, as the run's log has them."""
    path = folder / "metrics.jsonl"
    lines = [line for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
    entries = [entry for entry in map(json.loads, lines) if "grad_norm" in entry]
    return [(entry["step"], entry["loss"], entry["grad_norm"], entry["learning_rate"]) for entry in entries]


def assert_same_curve(folder: Path, expected: list[tuple[int, float, float, float]]) -> None:
    found = curve(folder)
    assert [entry[0] for entry in found] == list(range(1, STEPS + 1))
    for mine, wanted in zip(found, expected, strict=True):
        assert mine == pytest.approx(wanted, rel=1e-5), (mine, wanted)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_until(ready: Callable[[], bool], seconds: float, told: Callable[[], str]) -> None:
    """Wait for something to happen. Raises AssertionError with what `told` says when it does not."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"not within {seconds:g} s:\n{told()}"
        time.sleep(0.1)
