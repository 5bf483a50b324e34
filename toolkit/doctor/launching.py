"""Start the doctor's processes under a layout on this machine, and bring back their report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.cluster.allocation import Allocation
from toolkit.cluster.command import Command, build_command, find_layout
from toolkit.cluster.machine import count_accelerators
from toolkit.doctor.options import Options
from toolkit.doctor.report import Report, from_json
from toolkit.errors import UserError

_START_SECONDS = 120.0  # for starting Python, importing torch and looking at the host


def launch_group(layout: str, processes: int | None, options: Options) -> Report:
    """The report of the layout's processes. Raises UserError for a layout that is not there or cannot run here."""
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        written = Path(folder) / "report.json"
        started = command(find_layout(layout), processes, options, written, count_accelerators)
        limit = _START_SECONDS + 5 * options.wait + 4 * options.seconds
        text = _run(started.argv, limit)
        if written.is_file():
            found: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
            return from_json(found)
    _explain(text, limit)
    raise AssertionError("unreachable")


def command(
    file: Path, processes: int | None, options: Options, written: Path, devices_here: Callable[[], int]
) -> Command:
    """What starts the doctor's processes on this machine. Raises UserError for a number that cannot be."""
    flags = {
        "--output_dir": options.output_dir,
        "--wait": options.wait,
        "--seconds": options.seconds,
        "--parameters": options.parameters,
        "--model": options.model,
        "--micro-batches": options.micro_batches,
        "--tokens-per-step-per-device": options.tokens,
        "--compute-seconds": options.compute_seconds,
        "--write": written,
    }
    arguments = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
    script, here = Path(__file__).with_name("__main__.py"), Allocation("this machine")
    return build_command(file, script, arguments, here, num_processes=processes, devices_here=devices_here)


def _run(arguments: list[str], limit: float) -> str:
    """Run the launcher in a process group of its own, passing on the doctor's progress; returns all that it said."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *_python_path()])}
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    timer = threading.Timer(limit, _end, (process,))
    timer.start()
    said = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if line.startswith("doctor: "):
                print(line, end="", file=sys.stderr, flush=True)
        process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:
            _end(process)
    return "".join(said)


def _python_path() -> list[str]:
    return [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []


def _end(process: subprocess.Popen[str]) -> None:
    """The launcher and all its workers."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _explain(text: str, limit: float) -> None:
    """No report came: the workers' own error if there is one, else the end of what was said."""
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    if errors:
        raise UserError(errors[0].removeprefix("error: "))
    tail = "\n".join(text.splitlines()[-30:])
    print(f"{tail}\nfault: the layout's processes ended without a report within {limit:.0f} s", file=sys.stderr)
    sys.exit(1)
