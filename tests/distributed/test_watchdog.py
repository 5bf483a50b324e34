"""Real runs of recipes/sft.py in which one rank misbehaves: the right rank and line are named, and all end in seconds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).parents[2]
HANG_SECONDS = 6.0  # watch.hang_timeout of 0.1 minutes
NOTICE_SECONDS = 10.0  # two intervals, the answers, and a slow machine

# What rank BAD does at its third call of `moment`; STEP counts calls.
HEAD = """
import os, signal, sys, time
sys.path.insert(0, os.getcwd())
import torch
import toolkit.steps
from toolkit.errors import UserError, exit_with_message
from toolkit.layout import Layout
from toolkit.objectives import ObjectiveModule
RANK = int(os.environ.get("RANK", "0"))
calls = 0
def misbehave():
    global calls
    calls += 1
    if RANK == BAD and calls == WHEN:
        sys.stderr.write(f"MISBEHAVES {os.getpid()}\\n")
        sys.stderr.flush()
        deed()
def in_forward(forward=ObjectiveModule.forward):
    def patched(self, *arguments):
        if torch.is_grad_enabled():
            misbehave()
        return forward(self, *arguments)
    ObjectiveModule.forward = patched
def in_data(collate=toolkit.steps.collate):
    def patched(*arguments, **options):
        misbehave()
        return collate(*arguments, **options)
    toolkit.steps.collate = patched
"""
TAIL = """
from recipes.sft import main
exit_with_message(main)
"""
SLEEPS = "def deed():\n    while True: time.sleep(1)  # asleep\nin_forward()\n"
SPINS = "def deed():\n    while True: pass  # spinning\nin_data()\n"
STOPS = "def deed(): os.kill(os.getpid(), signal.SIGSTOP)\nin_data()\n"
RAISES = "def deed(): raise RuntimeError('a bug of rank one')\nin_forward()\n"
USER_ERROR = "def deed(): raise UserError('rank one cannot')\nin_data()\n"
ALL_RAISE = "def deed(): raise RuntimeError('a bug of all')\nBAD = RANK\nin_forward()\n"
KILLED = "def deed(): os.kill(os.getpid(), signal.SIGKILL)\nin_forward()\n"
# After the collectives of the check at the start and of the evaluation before the first step.
MISSES = """
whole = Layout.sum
def patched(self, *values, votes=()):
    global calls
    calls += 1
    if RANK == BAD and calls == WHEN:
        sys.stderr.write("MISBEHAVES\\n")
        return list(torch.as_tensor([*values, *votes], dtype=torch.float64))
    return whole(self, *values, votes=votes)
Layout.sum = patched
"""
SLOW = """
forward = ObjectiveModule.forward
def patched(self, *arguments):
    if RANK == BAD:
        time.sleep(0.2)  # much beside a step on a busy machine
    return forward(self, *arguments)
ObjectiveModule.forward = patched
"""


@dataclass
class Ended:
    """How a run ended: seconds from the misbehaviour to each line, the exit code, the folder."""

    code: int
    lines: list[tuple[float, str]]
    folder: Path

    @property
    def output(self) -> str:
        return "".join(line for _, line in self.lines)

    def after(self, text: str) -> float:
        """Seconds from the misbehaviour to the first line with `text`."""
        told = [when for when, line in self.lines if "MISBEHAVES" in line]
        found = [when for when, line in self.lines if text in line]
        assert told, self.output
        assert found, self.output
        return found[0] - told[0]


@pytest.fixture
def run(tmp_path: Path):
    """Run recipes/sft.py with a rank that misbehaves; stdout and stderr come as one stream."""

    def start(
        deed: str, layout: str, *arguments: str, bad: int = 1, when: int = 3, flags=(), limit: int = 120
    ) -> Ended:
        script, folder = tmp_path / "script.py", tmp_path / "run"
        script.write_text(f"{HEAD}\nBAD, WHEN = {bad}, {when}\n{deed}\n{TAIL}", encoding="utf-8")
        command = [
            sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0",
            "--config_file", str(ROOT / "accelerate_configs" / f"{layout}.yaml"), *flags, str(script),
            "--config", str(ROOT / "recipes/configs/sft/demo.yaml"), "--output_dir", str(folder), "--generate_rows", "0",
            "--watch.hang_timeout", "0.1", "--train.max_steps", "30", "--eval_every", "1000", *arguments,
        ]  # fmt: skip
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "random", "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
        lines: list[tuple[float, str]] = []
        try:
            assert process.stdout is not None
            began = time.monotonic()
            for line in process.stdout:
                lines.append((time.monotonic(), line))
                if deed == STOPS and "stacks of all threads" in line:
                    # The launcher would give a stopped process half a minute to end by itself.
                    os.kill(int(next(told for _, told in lines if "MISBEHAVES" in told).split()[-1]), signal.SIGKILL)
                assert time.monotonic() - began < limit, "".join(line for _, line in lines)
            code = process.wait(timeout=limit)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return Ended(code, lines, folder)

    return start


def check_hang(ended: Ended, rank: int, *words: str) -> None:
    """One diagnosis, in time, that marks `rank` and has `words` in its cause."""
    assert ended.code != 0
    assert ended.output.count("  cause: ") == 1, ended.output
    assert HANG_SECONDS * 0.8 < ended.after("cause: ") < HANG_SECONDS + NOTICE_SECONDS, ended.output
    cause = next(line for _, line in ended.lines if "cause: " in line)
    for word in words:
        assert word in cause, ended.output
    assert f"  {rank} <--" in ended.output, ended.output
    assert ended.output.count(" <--") == 1, ended.output
    assert "exitcode  : 4" in ended.output or "exitcode: 4" in ended.output, ended.output


@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
def test_a_rank_that_sleeps_in_forward(layout, run) -> None:
    ended = run(SLEEPS, layout, when=5)
    check_hang(ended, 1, "rank 1 is stuck in forward", "deed")
    for rank in (0, 1):
        stacks = (ended.folder / "logs" / f"rank-{rank}.txt").read_text()
        assert "main thread:" in stacks
    assert "asleep" in stacks


def test_a_rank_that_spins_in_the_data_loader(run) -> None:
    ended = run(SPINS, "ddp", bad=0, when=15)
    check_hang(ended, 0, "rank 0 is stuck in data", "deed")


def test_a_rank_that_misses_a_collective(run) -> None:
    check_hang(run(MISSES, "ddp", when=5), 1, "rank 1 is ahead", "did not take part in the sum of the losses")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_process(rank, run) -> None:
    check_hang(run(STOPS, "ddp", bad=rank, when=15), rank, f"rank {rank} does not answer any more")


def test_a_process_alone(run) -> None:
    ended = run(SPINS, "single", bad=0, when=15)
    assert ended.output.count("the process is stuck in data") == 1, ended.output
    assert ended.after("cause: ") < HANG_SECONDS + NOTICE_SECONDS


def only_reason(ended: Ended, reason: str, *, traceback: bool) -> None:
    """`reason` is the one thing that ranks print, within seconds."""
    assert ended.code != 0
    assert ended.after(reason) < 5.0, ended.output
    # accelerate launch ends with a traceback of its own.
    own = re.split("[WE]\\d+ .*torch/distributed/elastic", ended.output)[0].split("MISBEHAVES", 1)[1]
    assert own.count("Traceback") == traceback, ended.output
    for noise in ("Connection closed", "Connection reset", "SIGTERM", "hang:", "Gloo"):
        assert noise not in own, ended.output
    assert "saving after this step" not in ended.output, ended.output
    assert ended.lines[-1][0] - ended.lines[0][0] < 60


@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
def test_a_bug_on_one_rank_is_the_only_thing_printed(layout, run) -> None:
    ended = run(RAISES, layout, when=5)
    only_reason(ended, "[rank 1] failed: RuntimeError: a bug of rank one", traceback=True)
    assert ended.output.count("[rank 1] failed: RuntimeError: a bug of rank one") == 1, ended.output
    assert "in deed" in ended.output
    assert "exitcode  : 1" in ended.output or "exitcode: 1" in ended.output, ended.output


def test_a_users_mistake_on_one_rank_is_the_only_thing_printed(run) -> None:
    ended = run(USER_ERROR, "ddp", when=15)
    only_reason(ended, "[rank 1] error: rank one cannot", traceback=False)
    assert ended.output.count("rank one cannot") == 1, ended.output


def test_a_bug_on_all_ranks_is_printed_once(run) -> None:
    ended = run(ALL_RAISE, "ddp", when=5)
    assert ended.output.count("RuntimeError: a bug of all") == 2, ended.output  # the traceback's last line, the reason
    assert "[rank" not in ended.output.split("torch.distributed.elastic")[0], ended.output
    only_reason(ended, "failed: RuntimeError: a bug of all", traceback=True)


def test_a_killed_process_is_spoken_of(run) -> None:
    ended = run(KILLED, "ddp", when=5)
    assert ended.code != 0
    assert ended.output.count("Another process has ended without a word") == 1, ended.output
    assert "Signal 9 (SIGKILL)" in ended.output, ended.output


def test_a_straggler_is_named_once(run) -> None:
    ended = run(SLOW, "ddp", "--train.max_steps", "100", bad=2, flags=("--num_processes", "3"))
    assert ended.code == 0, ended.output
    assert ended.output.count("slower than the others") == 1, ended.output
    line = next(line for _, line in ended.lines if "slower than the others" in line)
    assert "rank 2" in line, ended.output
    assert "computing" in line, ended.output


def test_nobody_is_named_in_a_run_that_goes_well(run) -> None:
    ended = run("", "ddp", "--train.max_steps", "150")
    assert ended.code == 0, ended.output
    assert "slower than the others" not in ended.output, ended.output
    assert "grows steadily" not in ended.output, ended.output
    assert not re.search(r"\bhang", ended.output), ended.output
    assert not (ended.folder / "logs").exists()
