"""Nothing is lost: runs that are killed or asked to stop at any moment go on to the weights of the uninterrupted run."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.demo import demo_flags
from tests.distributed.killing import Started
from toolkit.checkpoint.folder import find_checkpoints

pytestmark = pytest.mark.distributed

STEPS = 200


@pytest.fixture(scope="module")
def recipe() -> list[str]:
    every = {"checkpoint.save_every": 1, "checkpoint.keep_last": 1, "resume": "auto"}
    return demo_flags(**{"train.max_steps": STEPS, **every})


@pytest.fixture(scope="module")
def whole(recipe: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Weights of the run that nobody killed, on two processes."""
    run = Started(tmp_path_factory.mktemp("whole") / "run", [*recipe, "--checkpoint.save_every", "1000"], "ddp")
    assert run.ended(150) == 0, run.output
    return load_file(run.folder / "model" / "model.safetensors")


def assert_same_weights(folder: Path, whole: dict[str, torch.Tensor]) -> None:
    found = load_file(folder / "model" / "model.safetensors")
    assert found.keys() == whole.keys()
    for key, value in whole.items():
        assert torch.equal(found[key], value), key


@pytest.mark.timeout(600)
def test_twenty_kills_at_random_moments(recipe: list[str], whole, tmp_path: Path) -> None:
    """D04: every step is saved, so most of these fall into a save; no folder with a final name is ever incomplete."""
    generator, folder = random.Random(4), tmp_path / "run"
    before, unfinished, kills = 0, 0, 0
    while kills < 20:
        run = Started(folder, recipe, "ddp", name=str(kills))
        moved_on = run.until(lambda run=run, before=before: run.steps() > before)
        assert moved_on, run.output
        time.sleep(generator.uniform(0.0, 0.6))
        run.kill_all()
        kills += 1
        found = find_checkpoints(folder)
        assert all(checkpoint.fault is None for checkpoint in found), found
        unfinished += len(list(folder.glob("checkpoint-*.partial")))
        # At most the step after the last complete checkpoint is lost.
        assert found[-1].step >= run.steps() - 1 if found else run.steps() <= 1
        before = run.steps()
        assert before < STEPS, "the run was over before it was killed often enough"
    assert unfinished > 0, "no kill fell into a save"
    last = Started(folder, [*recipe, "--checkpoint.save_every", "1000"], "ddp", name="last")
    assert last.ended(150) == 0, last.output
    assert_same_weights(folder, whole)


def test_one_killed_rank_ends_the_others_and_the_run_goes_on(recipe: list[str], whole, tmp_path: Path) -> None:
    run = Started(tmp_path / "run", recipe, "ddp")
    assert run.until(lambda: run.steps() > 5), run.output
    started = time.monotonic()
    os.kill(run.ranks()[1], signal.SIGKILL)
    assert run.ended(60) != 0
    assert time.monotonic() - started < 40
    again = Started(tmp_path / "run", [*recipe, "--checkpoint.save_every", "1000"], "ddp", name="again")
    assert again.ended(150) == 0, again.output
    assert "going on after step" in again.output
    assert_same_weights(tmp_path / "run", whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_the_launcher_is_asked_to_stop(number: signal.Signals, recipe: list[str], whole, tmp_path: Path) -> None:
    """torchrun passes SIGTERM on; SIGUSR1 kills it, which its workers notice. They save, then all end."""
    quiet = [*recipe, "--checkpoint.save_every", "1000"]
    run = Started(tmp_path / "run", quiet, "ddp")
    assert run.until(lambda: run.steps() > 5), run.output
    run.process.send_signal(number)
    assert run.ended(40) != 0
    found = find_checkpoints(run.folder)
    assert len(found) == 1, run.output
    assert found[0].fault is None
    assert 5 < found[0].step < STEPS
    assert f"checkpoint-{found[0].step} of {STEPS} steps is saved" in run.output
    again = Started(tmp_path / "run", quiet, "ddp", name="again")
    assert again.ended(150) == 0, again.output
    assert_same_weights(tmp_path / "run", whole)


def test_one_process_ends_with_the_code_to_requeue_on(recipe: list[str], tmp_path: Path) -> None:
    run = Started(tmp_path / "run", [*recipe, "--checkpoint.save_every", "1000"], None)
    assert run.until(lambda: run.steps() > 2), run.output
    run.process.send_signal(signal.SIGUSR1)
    assert run.ended(30) == 75, run.output
    assert "Traceback" not in run.output
    assert run.output.count("stopped: SIGUSR1: checkpoint-") == 1


def test_a_launcher_of_one_process_that_dies_is_noticed(recipe: list[str], tmp_path: Path) -> None:
    """`accelerate launch` of one process passes no signal on."""
    run = Started(tmp_path / "run", [*recipe, "--checkpoint.save_every", "1000"], "single")
    assert run.until(lambda: run.steps() > 2), run.output
    run.process.kill()
    run.ended(30)
    assert "stopped: the launcher is gone: checkpoint-" in run.output
    assert len(find_checkpoints(run.folder)) == 1
