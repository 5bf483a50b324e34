"""A run's folder is never mixed with another's, and never loses a file that no run wrote."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.config import DataConfig, ModelConfig, RunConfig
from toolkit.errors import UserError
from toolkit.launcher import Launch
from toolkit.run_folder import RunFolder, claim

ALONE = Launch((), None, {}, False)


def settings(path: Path | str, **options) -> RunConfig:
    return RunConfig(output_dir=str(path), **options)


def finished_run(path: Path) -> RunFolder:
    """A folder as a whole run leaves it."""
    folder = claim(settings(path), ALONE)
    (folder.model / "shards").mkdir(parents=True)
    (folder.model / "config.json").write_text("{}")
    (folder.model / "shards" / "w.safetensors").write_text("weights")
    folder.metrics.write_text("{}\n")
    folder.record_files()
    folder.predictions.write_text("{}\n")
    return folder


def hashes(path: Path) -> dict[str, str]:
    files = (f for f in path.rglob("*") if f.is_file())
    return {str(f.relative_to(path)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def refused(config: RunConfig) -> str:
    with pytest.raises(UserError, match=r"^output_dir: ") as info:
        claim(config, ALONE)
    return str(info.value)


def test_a_claimed_folder_holds_the_configs_and_lists_them(tmp_path: Path) -> None:
    path = tmp_path / "a" / "run"
    claim(settings(path, seed=7), ALONE)
    assert "seed: 7" in (path / "config.yaml").read_text()
    assert "started without a launcher" in (path / "accelerate_config.yaml").read_text()
    manifest = json.loads((path / ".toolkit-run.json").read_text())
    assert manifest["files"] == ["config.yaml", "accelerate_config.yaml"]


def test_the_layouts_file_is_kept_with_the_run(tmp_path: Path) -> None:
    layout = tmp_path / "ddp.yaml"
    layout.write_text("num_processes: 2\n")
    claim(settings(tmp_path / "run"), Launch(("accelerate", "launch"), layout, {}, False))
    assert "num_processes: 2\n" in (tmp_path / "run" / "accelerate_config.yaml").read_text()


def test_a_second_run_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    finished_run(tmp_path / "run")
    before = hashes(tmp_path)
    said = refused(settings(tmp_path / "run"))
    assert "overwrite" in said
    assert "resume" in said
    assert hashes(tmp_path) == before


def test_overwrite_leaves_a_fresh_folder(tmp_path: Path) -> None:
    finished_run(tmp_path / "run")
    (tmp_path / "run" / "model.partial").mkdir()
    claim(settings(tmp_path / "run", overwrite=True), ALONE)
    found = {f.name for f in (tmp_path / "run").iterdir()}
    assert found == {"config.yaml", "accelerate_config.yaml", ".toolkit-run.json"}


def test_overwrite_leaves_what_no_run_wrote(tmp_path: Path) -> None:
    path = tmp_path / "run"
    finished_run(path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (path / "notes.txt").write_text("mine")
    (path / "my empty folder").mkdir()
    (path / "link").symlink_to(outside)
    claim(settings(path, overwrite=True), ALONE)
    assert (path / "notes.txt").read_text() == "mine"
    assert (path / "my empty folder").is_dir()
    assert (path / "link").is_symlink()
    assert not (path / "model").exists()


def test_a_foreign_file_in_the_model_folder_is_named_and_nothing_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    finished_run(path)
    (path / "model" / "mine.txt").write_text("mine")
    before = hashes(path)
    assert "model/mine.txt" in refused(settings(path, overwrite=True))
    assert hashes(path) == before


def test_a_manifest_cannot_lead_outside(tmp_path: Path) -> None:
    path = tmp_path / "run"
    finished_run(path)
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    (path / "link.txt").symlink_to(victim)
    manifest = path / ".toolkit-run.json"
    files = json.loads(manifest.read_text())["files"]
    manifest.write_text(json.dumps({"files": [*files, "../victim.txt", str(victim), "link.txt", ".", "..", "model"]}))
    claim(settings(path, overwrite=True), ALONE)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": 3}', '{"files": [3]}'])
def test_a_damaged_manifest_is_a_users_error(tmp_path: Path, content: str) -> None:
    finished_run(tmp_path / "run")
    (tmp_path / "run" / ".toolkit-run.json").write_text(content)
    before = hashes(tmp_path)
    assert ".toolkit-run.json" in refused(settings(tmp_path / "run", overwrite=True))
    assert hashes(tmp_path) == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "model", "model.partial"])
def test_without_a_manifest_our_names_are_somebody_elses(tmp_path: Path, name: str, overwrite: bool) -> None:
    (tmp_path / name).mkdir()
    assert name in refused(settings(tmp_path, overwrite=overwrite))
    assert [f.name for f in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", [".gitkeep", "notes.txt"])
def test_a_folder_with_other_files_is_accepted(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    claim(settings(tmp_path), ALONE)
    assert (tmp_path / name).exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("mine")
    assert "is a file" in refused(settings(tmp_path / "f", overwrite=True))
    assert "cannot write" in refused(settings(tmp_path / "f" / "run"))
    assert (tmp_path / "f").read_text() == "mine"


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A folder that this process cannot write to, also when the tests run as root."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            if root:
                os.seteuid(0)
            Path(name).chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX permissions")
def test_a_folder_that_cannot_be_written_is_refused(read_only_folder: Path) -> None:
    assert "cannot write" in refused(settings(read_only_folder))
    assert "cannot write" in refused(settings(read_only_folder / "run"))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("place", [".", "", "/", "~", "./sub/..", "link"])
def test_places_that_must_never_be_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, overwrite: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    refused(settings(Path(place).expanduser() if place == "~" else place, overwrite=overwrite))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["link", "sub"]


@pytest.mark.parametrize("source", ["data/a.jsonl", "data", "data/*.jsonl", ["other.jsonl", "data/a.jsonl"]])
def test_the_data_and_model_folders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("{}\n")
    for data in (DataConfig(train=source), DataConfig(eval=source)):
        assert "lies" in refused(settings(tmp_path / "data", data=data, overwrite=True))
    if source == "data":
        refused(settings("data", model=ModelConfig(name_or_path="./data"), overwrite=True))
    assert [f.name for f in (tmp_path / "data").iterdir()] == ["a.jsonl"]
