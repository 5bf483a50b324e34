"""Start a run, watch it, and kill it at a moment of one's choosing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]


class Started:
    """A run in the background, in a process group of its own; its output goes to a file."""

    def __init__(
        self,
        folder: Path,
        arguments: list[str],
        layout: str | None,
        *flags: str,
        name: str = "run",
        logs: Path | None = None,
    ) -> None:
        self.folder, self.log = folder, (logs or folder.parent) / f"{folder.name}.{name}.log"
        launcher = ["-m", "accelerate.commands.launch", "--config_file", f"accelerate_configs/{layout}.yaml"]
        launcher += ["--main_process_port", "0", *flags]
        command = [sys.executable, *(launcher if layout else []), "recipes/sft.py", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "random", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            [*command, "--output_dir", str(folder)], stdout=self.log.open("w"), stderr=subprocess.STDOUT, cwd=ROOT,
            env=environment, start_new_session=True,
        )  # fmt: skip

    @property
    def output(self) -> str:
        return self.log.read_text()

    def until(self, ready: Callable[[], bool], seconds: float = 90.0) -> bool:
        """Wait for something to happen; False when the run ended before."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if ready():
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.01)
        self.kill_all()
        raise AssertionError(f"nothing happened for {seconds} s:\n{self.output}")

    def steps(self) -> int:
        """The last step in metrics.jsonl."""
        with suppress(OSError, ValueError, IndexError):
            return int((self.folder / "metrics.jsonl").read_text().splitlines()[-1].split('"step": ')[1].split(",")[0])
        return 0

    def ranks(self) -> list[int]:
        """Process ids of the workers, by rank."""
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error, KeyError):
                if "recipes/sft.py" in child.cmdline():
                    found[int(child.environ().get("RANK", "0"))] = child.pid
        return [found[rank] for rank in sorted(found)]

    def kill_all(self) -> None:
        """SIGKILL for the launcher and every worker."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        # torchrun starts workers in sessions of their own.
        for pid in self.everyone():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)

    def everyone(self) -> list[int]:
        """Process ids of all processes that were started for this run's folder."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if str(self.folder) in (process.info["cmdline"] or []):
                found.append(process.pid)
        return found

    def ended(self, seconds: float = 60.0) -> int:
        """Wait for the launcher and every worker to end; returns the launcher's exit code."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None and not self.everyone():
                return self.process.returncode
            time.sleep(0.05)
        output = self.output
        self.kill_all()
        raise AssertionError(f"still running after {seconds} s:\n{output}")
