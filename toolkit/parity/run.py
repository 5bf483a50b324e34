"""Runs of one recipe on several layouts, one after another, and the curves they leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from toolkit.cluster.allocation import Allocation
from toolkit.cluster.command import Command, build_command, find_layout, read_layout, whole
from toolkit.cluster.running import first_code
from toolkit.errors import EXIT_FOLDER, NUMERICAL_ERROR_EXIT_CODE, UserError
from toolkit.monitor.progress import logged
from toolkit.parity.compare import Point

_LOOK_SECONDS = 0.3
_LAST_LINES = 15
# What parity decides for all runs alike.
_OWNED = (
    "train.max_steps",
    "output_dir",
    "overwrite",
    "resume",
    "checkpoint.save_every",
    "checkpoint.save_every_minutes",
    "checkpoint.keep_best",
    "generate_rows",
    "log_gradient_norms",
    "push_to_hub",
)
_MESSAGE = re.compile(r"(\[rank \d+\] )?(error|stopped|failed): ")


@dataclass(frozen=True)
class LayoutRun:
    """A layout to be run. name: also that of its folder."""

    name: str
    file: Path
    settings: dict[str, Any]
    processes: int


@dataclass(frozen=True)
class Outcome:
    """What came of it. message: of a run that failed, its own last words. exit_code: that of the recipe."""

    exit_code: int
    curve: list[Point]
    dtype: str
    message: str

    @property
    def failed(self) -> bool:
        """True where the curve says nothing. A step that was not finite does: other layouts may not have it."""
        return self.exit_code not in (0, NUMERICAL_ERROR_EXIT_CODE)


def read_layouts(text: str) -> list[LayoutRun]:
    """`single,ddp:3,path/to/mine.yaml`: names or paths, each with a number of processes or the file's.

    Raises UserError for what does not exist, what is named twice and a number that is none.
    """
    found: list[LayoutRun] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, number = part.rpartition(":")
        if not colon:
            name, number = part, ""
        elif not (number.isdigit() and int(number)):
            raise UserError(f"--layouts {part}: the processes after the colon must be a whole number, as in ddp:3")
        file = find_layout(name)
        settings = read_layout(file)
        processes = int(number or whole(settings, file, "num_processes"))
        if processes > 1 and str(settings["distributed_type"]).upper() == "NO":
            raise UserError(
                f"--layouts {part}: {file} is for one process; with {processes} choose another, such as ddp"
            )
        if whole(settings, file, "num_machines") > 1:
            raise UserError(
                f"--layouts {part}: {file} is for several machines; parity runs on this one: set num_machines: 1"
            )
        run = LayoutRun(file.stem + (f"-{number}" if number else ""), file, settings, processes)
        if run.name in [other.name for other in found]:
            raise UserError(f"--layouts {part}: {run.name} is named twice")
        found.append(run)
    if len(found) < 2:
        raise UserError(f"--layouts {text}: name at least two, the first is what the others are compared with")
    return found


def check_flags(flags: Sequence[str]) -> None:
    """Raises UserError for a flag of the recipe that is parity's to set."""
    for flag in flags:
        name = flag.removeprefix("--").partition("=")[0]
        if flag.startswith("--") and name in _OWNED:
            instead = {
                "train.max_steps": "; use --steps",
                "output_dir": "; use --output",
                "overwrite": " before the --",
            }
            raise UserError(f"--{name} is set by parity for all runs alike; remove it{instead.get(name, '')}")


def command_of(
    run: LayoutRun, script: Path, flags: Sequence[str], folder: Path, steps: int, *, overwrite: bool, devices: int
) -> Command:
    """What starts a run in `folder`. devices: accelerators to run on, 0 for CPU processes. Raises UserError for sizes that
    do not fit together."""
    owned = {
        "train.max_steps": str(steps),
        "output_dir": str(folder / run.name),
        "overwrite": str(overwrite).lower(),
        "resume": "never",
        "checkpoint.save_every": "null",
        "checkpoint.save_every_minutes": "0",
        "checkpoint.keep_best": "null",
        "generate_rows": "0",
        "log_gradient_norms": "true",
        "push_to_hub": "false",
    }
    assert tuple(owned) == _OWNED
    arguments = [*flags, *(part for name, value in owned.items() for part in (f"--{name}", value))]
    return build_command(
        run.file,
        script,
        arguments,
        Allocation("this machine"),
        num_processes=run.processes,
        devices_here=lambda: devices,
    )


def execute(command: Command, folder: Path, log: Path, *, cpu: bool, at_step: Callable[[int], None]) -> Outcome:
    """Start the processes, wait for them, and read what they leave in `folder`. Their output goes to `log`.

    at_step: told of the steps that are done, while it runs.
    """
    # Without visible devices torch finds no accelerator, and a layout runs on CPU processes as on any machine without.
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": ""} if cpu else {}
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)  # that of an earlier run, which is being replaced
    with tempfile.TemporaryDirectory(prefix="toolkit-parity-") as codes, log.open("wb") as output:
        environment = {**os.environ, **command.environment, **hidden, EXIT_FOLDER: codes}
        process = subprocess.Popen(command.argv, env=environment, stdout=output, stderr=subprocess.STDOUT)
        with _ended_together(process):
            while process.poll() is None:
                at_step(_steps_done(metrics))
                time.sleep(_LOOK_SECONDS)
        code = process.returncode
        code = 0 if code == 0 else first_code(Path(codes)) or code
    curve = read_curve(folder)
    at_step(len(curve))
    return Outcome(code, curve, _dtype(folder), "" if code == 0 else last_words(log))


def read_curve(folder: Path) -> list[Point]:
    """The optimizer steps of a run, with the gradient norms of each."""
    norms = {entry["step"]: entry["gradient_norms"] for entry in logged(folder / "gradient_norms.jsonl")}
    keys = ("step", "loss", "grad_norm", "learning_rate", "tokens", "label_tokens")
    steps = [entry for entry in logged(folder / "metrics.jsonl") if "grad_norm" in entry]
    return [Point(**{key: entry[key] for key in keys}, gradient_norms=norms.get(entry["step"], {})) for entry in steps]


def last_words(log: Path) -> str:
    """The message of a recipe that failed: launchers print traces of their own after it."""
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    said = [line for line in lines if _MESSAGE.match(line)]
    return said[0] if said else "\n".join(lines[-_LAST_LINES:])


def _steps_done(metrics: Path) -> int:
    try:
        return metrics.read_bytes().count(b'"grad_norm"')
    except OSError:
        return 0


def _dtype(folder: Path) -> str:
    """dtype of the trained weights, as the finished model says; empty where there is none."""
    try:
        return str(json.loads((folder / "model" / "config.json").read_text(encoding="utf-8")).get("dtype", ""))
    except (OSError, ValueError):
        return ""


@contextmanager
def _ended_together(process: subprocess.Popen) -> Iterator[None]:
    """A signal that ends this process ends `process` first, whose workers end with it."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
