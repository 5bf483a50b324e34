"""Two network namespaces as two hosts, joined by a cable that can be cut. Each has a host name of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.cluster.running import ENVIRONMENT, LAUNCH, ROOT

_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def missing() -> str:
    """Why there can be no two hosts here; empty when there can."""
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux")):
        if shutil.which(program, path=_PATH) is None:
            return f"{program} not found: apt-get install {package}"
    if os.geteuid() != 0:
        return "network namespaces are made as root; run these tests as root"
    probe = f"probe{os.getpid()}"
    made = subprocess.run(
        ["ip", "netns", "add", probe], capture_output=True, text=True, env=_environment(), check=False
    )
    if made.returncode != 0:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    _ip("netns", "delete", probe)
    return ""


@dataclass(frozen=True)
class TwoHosts:
    """node1 and node2 at 10.77.0.1 and 10.77.0.2, in namespaces of this process's own."""

    addresses: tuple[str, str] = ("10.77.0.1", "10.77.0.2")

    def namespace(self, number: int) -> str:
        """Name of the namespace of node 0 or 1."""
        return f"host{os.getpid()}-{number + 1}"

    def cable(self, number: int) -> str:
        """Name of the interface there."""
        return f"cable{number + 1}"

    def start(self) -> TwoHosts:
        """Make both and connect them. `stop` must be called in any case."""
        for node in (0, 1):
            _ip("netns", "add", self.namespace(node))
            _ip("-n", self.namespace(node), "link", "set", "lo", "up")
        one, other = self.namespace(0), self.namespace(1)
        _ip("link", "add", self.cable(0), "netns", one, "type", "veth", "peer", "name", self.cable(1), "netns", other)
        for node, address in enumerate(self.addresses):
            _ip("-n", self.namespace(node), "address", "add", f"{address}/24", "dev", self.cable(node))
            _ip("-n", self.namespace(node), "link", "set", self.cable(node), "up")
        return self

    def stop(self) -> None:
        """Remove both."""
        for node in (0, 1):
            subprocess.run(
                ["ip", "netns", "delete", self.namespace(node)], capture_output=True, env=_environment(), check=False
            )

    def cut(self) -> None:
        """Cut the cable: packets vanish, and nobody is told."""
        _ip("-n", self.namespace(1), "link", "set", self.cable(1), "down")

    def launch(self, node: int, log: Path, port: int, arguments: Sequence[str]) -> Launcher:
        """Start `toolkit launch` on a node, with the variables that torchrun's operators set."""
        environment = {
            **_environment(), "NNODES": "2", "NODE_RANK": str(node), "MASTER_ADDR": self.addresses[0],
            "MASTER_PORT": str(port), **ENVIRONMENT,
        }  # fmt: skip
        named = f'hostname node{node + 1} && exec "$@"'
        command = ["ip", "netns", "exec", self.namespace(node), "unshare", "--uts", "sh", "-c", named, "sh"]
        with log.open("w") as file:
            process = subprocess.Popen(
                [*command, *LAUNCH, *arguments], stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environment,
                start_new_session=True,
            )  # fmt: skip
        return Launcher(process, log)


@dataclass(frozen=True)
class Launcher:
    """A running `toolkit launch`; its output goes to a file."""

    process: subprocess.Popen
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text()

    def ended(self, seconds: float) -> int:
        """Wait for its end; returns its exit code. Kills it, and raises AssertionError, when it takes longer."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {seconds:g} s:\n{self.output}") from None

    def kill(self) -> None:
        """SIGKILL for it and all that it has started."""
        with suppress(psutil.Error):
            everyone = psutil.Process(self.process.pid).children(recursive=True)
            for process in everyone:
                with suppress(psutil.Error):
                    process.kill()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


def until_all_ended(launchers: Sequence[Launcher], seconds: float) -> list[float]:
    """Wait for the end of each; returns how many seconds from now each took."""
    began, ends = time.monotonic(), [0.0] * len(launchers)
    while not all(ends):
        for number, launcher in enumerate(launchers):
            if not ends[number] and launcher.process.poll() is not None:
                ends[number] = time.monotonic() - began
        if time.monotonic() - began > seconds:
            told = "\n".join(launcher.output for launcher in launchers)
            raise AssertionError(f"still running after {seconds:g} s:\n{told}")
        time.sleep(0.05)
    return ends


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": _PATH}


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, env=_environment(), check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
