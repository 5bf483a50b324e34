"""A SLURM of two nodes for all tests of this session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.slurm_lab import Lab, missing


@pytest.fixture(scope="session")
def slurm(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The running lab; the test is skipped where there can be none."""
    if reason := missing():
        pytest.skip(reason)
    lab = Lab()
    try:
        lab.start()
        terminal = request.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            version = lab.command("scontrol", "--version")
            terminal.write_line(f"{version}, two nodes on this machine, {lab.proctrack}")
        yield lab
    finally:
        lab.stop()
