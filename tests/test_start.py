"""Which folder and which checkpoint a run begins with. D03, D04, F09, F16."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.checkpoint.test_folder import make, names
from toolkit.config import ModelConfig, RunConfig, TrainConfig
from toolkit.errors import UserError
from toolkit.launcher import Launch
from toolkit.run_folder import RunFolder, claim
from toolkit.start import open_folder

ALONE = Launch((), None, {}, False)


def config(path: Path, **options) -> RunConfig:
    return RunConfig(output_dir=str(path), model=ModelConfig(name_or_path="m"), **options)


def opened(path: Path, resume: str = "auto", **options):
    """(step of the checkpoint or None, finished, what was said)"""
    said: list[str] = []
    folder, checkpoint, finished = open_folder(config(path, resume=resume, **options), ALONE, said.append)
    assert folder == RunFolder(path)
    return (checkpoint.step if checkpoint else None), finished, said


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was killed after step 20 and left two checkpoints."""
    path = tmp_path / "run"
    first = config(path)
    claim(first, ALONE)
    for step in (10, 20):
        make(path, step, config=dataclasses.asdict(first))
    (path / "metrics.jsonl").write_text('{"step": 1}\n')
    return path


def finish(path: Path) -> None:
    (path / "model").mkdir()
    (path / "model" / "config.json").write_text("{}")
    RunFolder(path).record_files(finished=True)


@pytest.mark.parametrize("prepare", [lambda p: None, lambda p: p.mkdir()])
def test_auto_starts_where_there_is_nothing_yet(prepare, tmp_path: Path) -> None:
    prepare(tmp_path / "run")
    step, finished, said = opened(tmp_path / "run")
    assert (step, finished) == (None, False)
    assert len(said) == 1
    assert "starts from the beginning" in said[0]
    assert (tmp_path / "run" / "config.yaml").exists()


def test_auto_goes_on_from_the_newest(run: Path) -> None:
    (run / "checkpoint-30.partial").mkdir()
    step, finished, said = opened(run)
    assert (step, finished) == (20, False)
    assert any("checkpoint-30.partial" in line for line in said)
    assert (run / "metrics.jsonl").exists()
    assert not (run / "checkpoint-30.partial").exists()


def test_auto_with_only_a_damaged_one_starts_again_and_keeps_it_aside(run: Path) -> None:
    for step in (10, 20):
        (run / f"checkpoint-{step}" / "checkpoint.json").write_text("")
    step, _, said = opened(run)
    assert step is None
    assert "no whole checkpoint" in said[-1]
    assert {"checkpoint-10.aside", "checkpoint-20.aside"} <= names(run)
    assert not (run / "metrics.jsonl").exists()


def test_a_named_one_sets_what_comes_after_it_aside(run: Path) -> None:
    step, _, said = opened(run, str(run / "checkpoint-10"))
    assert step == 10
    assert "checkpoint-20 lies after step 10" in said[0]
    assert {"checkpoint-10", "checkpoint-20.aside"} <= names(run)


def test_a_named_one_of_another_run_begins_a_new_folder(run: Path, tmp_path: Path) -> None:
    assert opened(tmp_path / "new", str(run / "checkpoint-20"))[0] == 20
    assert (tmp_path / "new" / "config.yaml").exists()
    assert "checkpoint-20" in names(run)


def test_a_finished_run_is_left_alone(run: Path) -> None:
    finish(run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert opened(run)[:2] == (None, True)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_finished_run_that_is_to_be_longer_goes_on_if_that_is_allowed(run: Path) -> None:
    finish(run)
    before = (run / "config.yaml").read_text()
    longer = TrainConfig(max_steps=80)
    with pytest.raises(UserError, match=r"train\.max_steps: None -> 80.*--allow_changes \[train\.max_steps\]"):
        opened(run, train=longer)
    assert (run / "config.yaml").read_text() == before
    assert opened(run, train=longer, allow_changes=["train.max_steps"])[:2] == (20, False)


def test_two_wishes_that_exclude_each_other(run: Path) -> None:
    with pytest.raises(UserError, match="resume and overwrite are both set"):
        opened(run, overwrite=True)


def test_true_is_answered_with_what_is_meant(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="auto goes on"):
        opened(tmp_path / "run", "true")


def test_a_folder_with_checkpoints_that_no_run_wrote_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "run", 20)
    with pytest.raises(UserError, match="has checkpoint-20 that no run wrote"):
        opened(tmp_path / "run", "never")


def test_overwrite_removes_checkpoints_of_the_run_and_refuses_strange_files_in_them(run: Path) -> None:
    (run / "checkpoint-10" / "mine.txt").write_text("notes")
    with pytest.raises(UserError, match=r"checkpoint-10/mine\.txt"):
        opened(run, "never", overwrite=True)
    assert {"checkpoint-10", "checkpoint-20"} <= names(run)
    (run / "checkpoint-10" / "mine.txt").unlink()
    assert opened(run, "never", overwrite=True)[0] is None
    assert not names(run) & {"checkpoint-10", "checkpoint-20", "metrics.jsonl"}
