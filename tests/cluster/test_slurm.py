"""The batch script of `toolkit launch --slurm` on a real SLURM of two nodes, one process on each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.slurm_lab import Job, Lab
from toolkit.checkpoint.folder import find_checkpoints

pytestmark = [pytest.mark.distributed, pytest.mark.slurm]

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "recipes" / "demo"
STEPS = 60
LAUNCH = [sys.executable, "-c", "from toolkit.cli import main; main()", "launch", "sft", "--layout", "ddp"]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "random", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT),
}  # fmt: skip
RECIPE = {
    "model.name_or_path": DEMO / "model",
    "model.random_init": "true",
    "data.train": DEMO / "train.jsonl",
    "data.max_rows": 300,
    "train.global_batch_size": 4,
    "train.max_steps": STEPS,
    "train.learning_rate": "1e-3",
    "checkpoint.save_every": 1000,
    "checkpoint.save_every_minutes": 0,
}


def flags(folder: Path, **more: object) -> list[str]:
    return [f"--{key}={value}" for key, value in {**RECIPE, "output_dir": folder, **more}.items()]


def curve(folder: Path) -> list[tuple[int, float, float, float]]:
    """Step, loss, gradient norm and learning rate of every optimizer step, as the run's log has them."""
    path = folder / "metrics.jsonl"
    lines = [line for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
    entries = [entry for entry in map(json.loads, lines) if "grad_norm" in entry]
    return [(entry["step"], entry["loss"], entry["grad_norm"], entry["learning_rate"]) for entry in entries]


def assert_same_curve(folder: Path, expected: list[tuple[int, float, float, float]]) -> None:
    found = curve(folder)
    assert [entry[0] for entry in found] == list(range(1, STEPS + 1))
    for mine, wanted in zip(found, expected, strict=True):
        assert mine == pytest.approx(wanted, rel=1e-5), (mine, wanted)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, float, float, float]]:
    """The curve of two processes on one machine."""
    folder = tmp_path_factory.mktemp("one machine") / "run"
    done = subprocess.run(
        [*LAUNCH, "--num_processes", "2", "--", *flags(folder)], capture_output=True, text=True, timeout=120, cwd=ROOT,
        env={**os.environ, **ENVIRONMENT}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return curve(folder)


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
