"""The batch script of `toolkit launch --slurm` on a real SLURM of two nodes, one process on each."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.running import ENVIRONMENT, LAUNCH, ROOT, STEPS, assert_same_curve, curve, flags
from tests.cluster.slurm_lab import Job, Lab
from toolkit.checkpoint.folder import find_checkpoints

pytestmark = [pytest.mark.distributed, pytest.mark.slurm]


@pytest.fixture
def submit(slurm: Lab, tmp_path: Path) -> Callable[..., Job]:
    """Let `toolkit launch` write the script, and hand it in."""

    def write_and_submit(*recipe: str) -> Job:
        script = tmp_path / "script.sbatch"
        asked = [f"--slurm={script}", "--nodes=2", "--gpus-per-node=1", "--time=00:05:00", "--signal-before=60"]
        slurm.command(
            *LAUNCH, *asked, f"--sbatch=--output={tmp_path}/%j.out", "--", *recipe, folder=ROOT, **ENVIRONMENT
        )
        return slurm.submit(script, ROOT, **ENVIRONMENT)

    return write_and_submit


def test_two_nodes_follow_the_curve_of_one_machine(submit, expected, tmp_path: Path) -> None:
    job = submit(*flags(tmp_path / "run"))
    shown = job.ended(90)
    assert (shown["JobState"], shown["ExitCode"]) == ("COMPLETED", "0:0"), job.output
    assert shown["NumNodes"] == "2"
    for node in (0, 1):
        assert job.output.count(f"node {node} of 2, which meet at 127.0.0.1:") == 1, job.output
    assert "DDP, 2 processes on cpu, data-parallel size 2" in job.output
    assert_same_curve(tmp_path / "run", expected)


def test_a_job_saves_before_its_limit_returns_to_the_queue_and_goes_on(submit, expected, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = submit(*flags(folder))
    job.until(lambda: len(curve(folder)) > 5, 60)
    job.signal("USR1")
    job.until(lambda: job.show()["Restarts"] == "1" and job.state == "PENDING", 40)
    saved = find_checkpoints(folder)
    assert len(saved) == 1, job.output
    assert saved[0].fault is None
    assert 5 < saved[0].step < STEPS
    assert job.output.count(f"checkpoint-{saved[0].step} of {STEPS} steps is saved") == 1, job.output
    job.start_now()
    shown = job.ended(90)
    assert (shown["JobState"], shown["ExitCode"]) == ("COMPLETED", "0:0"), job.output + job.lab.logs()
    assert f"going on after step {saved[0].step} of {STEPS}" in job.output
    assert_same_curve(folder, expected)


def test_a_users_mistake_ends_the_job_on_both_nodes_with_its_message_once(submit, tmp_path: Path) -> None:
    job = submit(*flags(tmp_path / "run"), "--train.learing_rate=1")
    began = time.monotonic()
    shown = job.ended(45)
    assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", "2:0", "0"), job.output
    assert job.output.count("unknown key train.learing_rate") == 1, job.output
    # Less than the minute that srun gives a node whose sibling has ended.
    assert time.monotonic() - began < 40
