"""Run a launcher: pass signals on to the processes that can save, and their exit code on to whoever waits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import psutil

from toolkit.cluster.command import Command
from toolkit.errors import EXIT_FOLDER

_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1)


def run_command(command: Command) -> int:
    """Start `command`, wait for it, and return the exit code of the worker that ended first with one of its own.

    `accelerate launch` itself returns 1 whatever its workers returned, and dies of the SIGUSR1 that asks them to save.
    """
    with tempfile.TemporaryDirectory(prefix="toolkit-launch-") as codes:
        environment = {**os.environ, **command.environment, EXIT_FOLDER: codes}
        process = subprocess.Popen(command.argv, env=environment, preexec_fn=_ignore_requests)
        with _passing_on(process.pid, str(command.script)):
            code = process.wait()
        if code == 0:
            return 0
        return first_code(Path(codes)) or (128 - code if code < 0 else code)


def _ignore_requests() -> None:
    """In the launcher. Its workers inherit this until they listen themselves, which they do in their first second."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


@contextlib.contextmanager
def _passing_on(launcher: int, script: str) -> Iterator[None]:
    def pass_on(number: int, frame: FrameType | None) -> None:
        """To the workers; to the launcher where it has none yet."""
        workers = _workers(launcher, script)
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                worker.send_signal(number)
        if not workers and number == signal.SIGTERM:
            with contextlib.suppress(ProcessLookupError):
                os.kill(launcher, number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    # A terminal sends Ctrl-C to all; the launcher ends its workers, and this process waits for it.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _workers(launcher: int, script: str) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(launcher).children():
            with contextlib.suppress(psutil.Error):
                found += [child] if script in child.cmdline() else []
    return found


def first_code(folder: Path) -> int | None:
    written = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    return int(written[0].read_text()) if written else None
