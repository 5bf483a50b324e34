"""`toolkit launch` as a user runs it: the command it prints, exit codes and signals passed on, and the batch script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCHEDULERS = ("SLURM_", "PET_", "MASTER_", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NNODES", "NODE_RANK")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(SCHEDULERS)} | {"OMP_NUM_THREADS": "1"}
COMMAND = [sys.executable, "-c", "from toolkit.cli import main; main()", "launch"]


def launch(*arguments: str, timeout: int = 100, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=timeout, cwd=ROOT, env=ENVIRONMENT | environment,
        check=False,
    )  # fmt: skip


def test_a_dry_run_prints_the_command_alone() -> None:
    done = launch("sft", "--layout", "ddp", "--num_processes", "3", "--dry-run", "--", "--seed", "5")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "accelerate launch --config_file accelerate_configs/ddp.yaml --num_processes 3 --num_machines 1 "
        "--main_process_port 0 recipes/sft.py --seed 5\n"
    )


def test_a_flag_of_the_recipe_in_the_wrong_place_is_explained() -> None:
    done = launch("sft", "--layout", "ddp", "--train.max_steps", "3")
    assert done.returncode == 2
    assert "come after --: -- --train.max_steps 3" in done.stderr


def test_nodes_that_the_scheduler_did_not_give_are_refused() -> None:
    done = launch("sft", "--layout", "ddp", "--nodes", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--nodes is 2, but this machine gives 1" in done.stderr


@pytest.mark.distributed
@pytest.mark.parametrize("layout", ["single", "ddp"])
def test_the_recipes_exit_code_comes_through(layout: str, tmp_path: Path) -> None:
    output = ("--output_dir", str(tmp_path / "run"))
    done = launch("sft", "--layout", layout, "--", *output, "--train.learing_rate", "1")
    assert done.returncode == 2
    assert done.stderr.count("unknown key train.learing_rate") == 1
    done = launch("sft", "--layout", layout, "--", *output, "--train.max_steps", "1", "--generate_rows", "0")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model" / "config.json").exists()
    record = (tmp_path / "run" / "accelerate_config.yaml").read_text()
    assert f"{layout}.yaml" in record, "the run does not know its layout file"


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("layout", "number"), [("single", signal.SIGTERM), ("ddp", signal.SIGUSR1), ("ddp", signal.SIGTERM)]
)
def test_a_signal_saves_and_ends_with_75(layout: str, number: signal.Signals, tmp_path: Path) -> None:
    metrics = tmp_path / "run" / "metrics.jsonl"
    process = subprocess.Popen(
        [*COMMAND, "sft", "--layout", layout, "--", "--output_dir", str(tmp_path / "run"), "--generate_rows", "0"],
        cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not metrics.exists() or '"step": 3' not in metrics.read_text():
        assert time.monotonic() < deadline, "no step was made"
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    assert f"{number.name}: saving after this step" in output
    assert len(list((tmp_path / "run").glob("checkpoint-*"))) == 1, output


def test_a_batch_script_is_written_once_and_bash_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "job.sbatch"
    request = [
        "sft", "--layout", "hsdp", "--slurm", str(file), "--nodes", "4", "--gpus-per-node", "8", "--time", "04:00:00",
        "--partition", "gpu", "--signal-before", "300", "--sbatch=--constraint=a100", "--", "--config", "my file.yaml",
    ]  # fmt: skip
    done = launch(*request)
    assert done.returncode == 0, done.stderr
    text = file.read_text()
    for line in (
        "#SBATCH --nodes=4", "#SBATCH --ntasks-per-node=1 ", "#SBATCH --gpus-per-node=8", "#SBATCH --time=04:00:00",
        "#SBATCH --signal=B:USR1@300 ", "#SBATCH --requeue", "#SBATCH --constraint=a100", "#SBATCH --partition=gpu",
    ):  # fmt: skip
        assert f"\n{line}" in text, line
    assert "toolkit launch recipes/sft.py --layout hsdp --nodes 4 -- --resume auto --config 'my file.yaml' &\n" in text
    assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0
    again = launch(*request)
    assert again.returncode == 2
    assert "the file exists" in again.stderr
    assert launch(*request[:-3], "--overwrite", "--", "--resume", "never").returncode == 0
    assert "-- --resume never &" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--slurm", "{}", "--nodes", "2", "--time", "soon", "--gpus-per-node", "1"), "--time soon"),
        (("--slurm", "{}", "--gpus-per-node", "1"), "needs --nodes and --time"),
        (("--slurm", "{}", "--nodes", "2", "--time", "10"), "needs --gpus-per-node, or"),
        (("--time", "10"), "--time is for the batch script"),
        (("--num_processes", "0"), "--num_processes: must be at least 1"),
    ],
)
def test_a_request_that_is_not_whole_is_one_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    file = tmp_path / "job.sbatch"
    done = launch("sft", "--layout", "ddp", *(part.format(file) for part in arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert not file.exists()
