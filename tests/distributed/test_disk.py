"""Disks that are full, read-only or in the way: said before step 1 where possible, and nothing that was saved is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.distributed.conftest import ROOT, launch
from tests.distributed.killing import Started
from toolkit.checkpoint.folder import find_checkpoints, wrong_files

pytestmark = pytest.mark.distributed

DEMO = ROOT / "recipes" / "demo"
MEGABYTES_OF_A_CHECKPOINT = 20  # 1.67 million weights and two moments, in fp32


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts small disks, where this may be done."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", str(path)], check=True)


def recipe(*more: str) -> list[str]:
    settings = {
        "model.name_or_path": DEMO / "model",
        "model.random_init": "true",
        "data.train": DEMO / "train.jsonl",
        "data.max_rows": 100,
        "train.global_batch_size": 4,
        "train.max_steps": 12,
        "checkpoint.save_every": 5,
        "checkpoint.keep_last": 1,
    }
    return [*(str(part) for key, value in settings.items() for part in (f"--{key}", value)), *more]


@pytest.mark.parametrize("more", [(), ("--checkpoint.asynchronous", "true")])
def test_a_full_disk_stops_the_run_and_keeps_what_there_is(disk, more: tuple[str, ...]) -> None:
    """D10."""
    folder = disk(f"size={MEGABYTES_OF_A_CHECKPOINT * 3 // 2}m") / "run"
    run = Started(folder, recipe(*more), None)
    assert run.ended(60) == 2, run.output
    warning, error = run.output.index("warning: 2 checkpoints of about"), run.output.index("error: checkpoint")
    assert warning < run.output.index("step 1/12") < error
    said = run.output[error:]
    assert str(folder / "checkpoint-10") in said
    assert "No space left on device" in said
    assert "bytes are free" in said
    assert "Traceback" not in run.output
    [kept] = find_checkpoints(folder)
    assert (kept.step, kept.fault, wrong_files(kept, kept.files)) == (5, None, [])
    assert not list(folder.glob("*.partial"))


def test_training_may_go_on_without_a_checkpoint(disk) -> None:
    folder = disk(f"size={MEGABYTES_OF_A_CHECKPOINT * 3 // 2}m") / "run"
    run = Started(folder, recipe("--checkpoint.on_save_error", "continue"), "ddp")
    assert run.ended(90) == 0, run.output
    assert run.output.count("warning: checkpoint") == 1
    assert "training goes on" in run.output
    assert [c.step for c in find_checkpoints(folder)] == [5]
    assert (folder / "model" / "model.safetensors").exists()


def test_no_room_for_even_one_is_said_before_the_first_step(disk) -> None:
    folder = disk(f"size={MEGABYTES_OF_A_CHECKPOINT // 2}m") / "run"
    run = Started(folder, recipe(), None)
    assert run.ended(60) == 2, run.output
    assert "a checkpoint needs about 20,0" in run.output
    assert "step 1/12" not in run.output


def test_a_read_only_folder_is_said_before_anything_is_read(disk, tmp_path: Path) -> None:
    folder = disk("ro") / "run"
    run = Started(folder, recipe(), "ddp", logs=tmp_path)
    assert run.ended(60) != 0
    assert run.output.count("error: output_dir: cannot write to") == 1, run.output
    assert "Read-only file system" in run.output
    assert "rows =" not in run.output


# A folder in the way of the second checkpoint: only the main process, which gives the name, can notice.
IN_THE_WAY = """
import os, sys
sys.path.insert(0, {root!r})
import toolkit.agenda
from toolkit.errors import exit_with_message
after = toolkit.agenda.Agenda.after_step
def after_step(self, step, wished):
    if step == 7 and os.environ["RANK"] == "0":
        os.makedirs({folder!r} + "/checkpoint-10/something")
    after(self, step, wished)
toolkit.agenda.Agenda.after_step = after_step
from recipes.sft import main
sys.argv[1:] = {arguments!r}
exit_with_message(main)
"""


def test_a_save_that_fails_on_one_rank_ends_all_with_its_reason(tmp_path: Path) -> None:
    """C18."""
    folder = tmp_path / "run"
    arguments = [*recipe(), "--output_dir", str(folder)]
    (tmp_path / "script.py").write_text(
        IN_THE_WAY.format(root=str(ROOT), folder=str(folder), arguments=arguments), encoding="utf-8"
    )
    code, output = launch(tmp_path / "script.py", [], layout="ddp", timeout=60)
    assert code != 0
    errors = [line for line in output.splitlines() if "error: " in line]
    assert len(errors) == 1, output
    assert "checkpoint-10 could not be written on rank 0: Directory not empty" in errors[0]
    assert [c.step for c in find_checkpoints(folder) if c.fault is None] == [5]
