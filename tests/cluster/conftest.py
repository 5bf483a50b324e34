"""A SLURM of two nodes, and the curve of one machine, for all tests of this session."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.running import ENVIRONMENT, LAUNCH, ROOT, curve, flags
from tests.cluster.slurm_lab import Lab, missing


@pytest.fixture(scope="session")
def slurm(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The running lab; the test is skipped where there can be none."""
    if reason := missing():
        pytest.skip(reason)
    lab = Lab()
    try:
        lab.start()
        with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
            print(f"\n{lab.command('scontrol', '--version')}, two nodes on this machine, {lab.proctrack}")
        yield lab
    finally:
        lab.stop()


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, float, float, float]]:
    """The curve of two processes on one machine."""
    folder = tmp_path_factory.mktemp("one machine") / "run"
    done = subprocess.run(
        [*LAUNCH, "--num_processes", "2", "--", *flags(folder)], capture_output=True, text=True, timeout=120, cwd=ROOT,
        env={**os.environ, **ENVIRONMENT}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return curve(folder)
