"""A process that fails before ranks can talk to each other: whether it prints its reason."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

FAILS = "from toolkit import errors; errors._OTHER_NODES_WAIT_SECONDS = 2.0; errors.fail('error: no such key', 2)"


def failed(**environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", FAILS], capture_output=True, text=True, timeout=60, env={**os.environ, **environment},
        check=False,
    )  # fmt: skip


@pytest.fixture
def listening():
    """A port on which somebody listens, as the launcher of the first node does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def on_the_second_node(port: int, **more: str) -> dict[str, str]:
    return {
        "RANK": "1", "GROUP_RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), **more,
    }  # fmt: skip


def test_the_main_process_prints() -> None:
    done = failed(RANK="0")
    assert (done.returncode, done.stderr) == (2, "error: no such key\n")


def test_another_node_prints_its_reason_while_the_first_goes_on(listening: socket.socket) -> None:
    done = failed(**on_the_second_node(listening.getsockname()[1]))
    assert (done.returncode, done.stderr) == (2, "[rank 1] error: no such key\n")


def test_another_node_is_silent_when_the_first_has_ended(listening: socket.socket) -> None:
    """Which has said why."""
    threading.Timer(1.0, listening.close).start()
    done = failed(**on_the_second_node(listening.getsockname()[1]))
    assert (done.returncode, done.stderr) == (2, "")


def test_another_node_prints_when_nobody_there_holds_a_store(listening: socket.socket) -> None:
    """Then a port that is closed says nothing about the first node."""
    port = listening.getsockname()[1]
    listening.close()
    done = failed(**on_the_second_node(port, TORCHELASTIC_USE_AGENT_STORE="False"))
    assert (done.returncode, done.stderr) == (2, "[rank 1] error: no such key\n")
