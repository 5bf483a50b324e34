"""Signals: one asks, two end; a time limit; nothing to save before training."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

CODE = """
import sys, time
from toolkit.stopping import StopRequest
stop = StopRequest({grace})
stop.install()
if {guarded}:
    stop.guard()
if {finishing}:
    stop.finishing()
print("ready", flush=True)
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    time.sleep(0.05)
    if stop.requested and {heed}:
        print("asked by", stop.reason)
        sys.exit(0)
"""


def start(*, grace: float = 15.0, guarded: bool = True, heed: bool = False, finishing: bool = False):
    code = CODE.format(grace=grace, guarded=guarded, heed=heed, finishing=finishing)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen) -> tuple[int, str, float]:
    started = time.monotonic()
    out, error = process.communicate(timeout=20)
    return process.returncode, out + error, time.monotonic() - started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_a_request(number: signal.Signals) -> None:
    process = start(heed=True)
    process.send_signal(number)
    code, said, _ = end(process)
    assert code == 0
    assert f"asked by {number.name}" in said
    assert "saving after this step" in said


def test_a_second_signal_ends_at_once_but_not_one_that_comes_with_the_first() -> None:
    process = start()
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    time.sleep(2.2)
    assert process.poll() is None
    process.send_signal(signal.SIGUSR1)
    code, said, seconds = end(process)
    assert code == 75
    assert "SIGUSR1 after SIGTERM: ended at once, nothing saved" in said
    assert seconds < 3


def test_the_grace_is_a_limit() -> None:
    process = start(grace=1.0)
    process.send_signal(signal.SIGTERM)
    code, said, seconds = end(process)
    assert code == 75
    assert "not saved within watch.stop_grace_seconds (1 s)" in said
    assert seconds < 5


def test_before_training_there_is_nothing_to_wait_for() -> None:
    process = start(guarded=False)
    process.send_signal(signal.SIGTERM)
    code, said, _ = end(process)
    assert code == 75
    assert "before there was anything to save" in said


def test_after_the_last_step_the_model_is_finished_first() -> None:
    process = start(grace=0.5, finishing=True)
    process.send_signal(signal.SIGTERM)
    time.sleep(2.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    code, said, _ = end(process)
    assert code == 75
    assert "the last step is done, writing the model" in said
