"""Checkpoint folders: found by number, never taken for whole when they are not. D04, D05, D06."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from toolkit.checkpoint.folder import MARKER, PARTIAL, find_checkpoints, open_checkpoint, seal, wrong_files
from toolkit.checkpoint.resume import named_checkpoint, newest_whole
from toolkit.checkpoint.retention import remove_leftovers, retire
from toolkit.checkpoint.shards import write_file
from toolkit.errors import UserError


def make(folder: Path, step: int, **record) -> Path:
    partial = folder / f"checkpoint-{step}{PARTIAL}"
    (partial / "model").mkdir(parents=True)
    (partial / "model" / "config.json").write_text("{}")
    file = write_file(partial / "shard-00001.safetensors", {"weights.w": (torch.full((4, 4), float(step)), [0, 0])})
    return seal(partial, [file], {"step": step, **record})


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_sealed_checkpoint_says_what_is_in_it(tmp_path: Path) -> None:
    path = make(tmp_path, 20, seed=7, config={"a": (1, 2)})
    checkpoint = open_checkpoint(path)
    assert checkpoint.fault is None
    assert (checkpoint.step, checkpoint.record["seed"], checkpoint.record["config"]) == (20, 7, {"a": [1, 2]})
    assert {file.name for file in checkpoint.files} == {"model/config.json", "shard-00001.safetensors"}
    assert wrong_files(checkpoint, checkpoint.files) == []
    assert names(tmp_path) == {"checkpoint-20"}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda c: (c / "shard-00001.safetensors").write_bytes(b"x" * 10), "has 10 bytes instead of"),
        (lambda c: (c / MARKER).write_text(""), "cannot be read"),
        (lambda c: (c / MARKER).write_text("[1]"), "cannot be read"),
        (lambda c: (c / MARKER).unlink(), "was not finished"),
        (lambda c: (c / "shard-00001.safetensors").unlink(), "is missing"),
        (lambda c: (c / "model" / "config.json").unlink(), "is missing"),
        (lambda c: edit(c, step=21), "was changed"),
        (lambda c: (c / "evil.safetensors").write_bytes(b""), "not one of the files"),
    ],
)
def test_a_damaged_one_is_not_used_and_set_aside(damage, said: str, tmp_path: Path) -> None:
    make(tmp_path, 20)
    damage(make(tmp_path, 40))
    heard: list[str] = []
    newest = newest_whole(tmp_path, heard.append)
    assert newest is not None
    assert newest.step == 20
    assert len(heard) == 1
    assert "checkpoint-40" in heard[0]
    assert said in heard[0]
    assert names(tmp_path) == {"checkpoint-20", "checkpoint-40.aside"}


def edit(path: Path, **changes) -> None:
    body = json.loads((path / MARKER).read_text())
    (path / MARKER).write_text(json.dumps(body | changes))


def test_a_named_one_must_be_whole(tmp_path: Path) -> None:
    path = make(tmp_path, 40)
    (path / "shard-00001.safetensors").unlink()
    with pytest.raises(UserError, match=r"shard-00001\.safetensors is missing"):
        named_checkpoint(path)
    make(tmp_path, 20)
    with pytest.raises(UserError, match=r"did you mean .*checkpoint-20"):
        named_checkpoint(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        named_checkpoint(tmp_path / "checkpoint-7")


def test_one_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = make(tmp_path, 3) / "shard-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    checkpoint = open_checkpoint(path.parent)
    assert checkpoint.fault is None  # by size
    assert wrong_files(checkpoint, checkpoint.files) == ["shard-00001.safetensors"]


def test_a_marker_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "secret"
    outside.write_text("s")
    path = make(tmp_path, 3)
    body = json.loads((path / MARKER).read_text())
    body["files"].append({"name": "../secret", "bytes": 1, "checksum": "0"})
    from toolkit.checkpoint.folder import WrittenFile, _checksum

    files = tuple(WrittenFile(**file) for file in body["files"])
    body["checksum"] = _checksum({"step": 3}, files)
    (path / MARKER).write_text(json.dumps(body))
    assert "not inside" in str(open_checkpoint(path).fault)


def test_numbers_count_and_other_things_are_left_alone(tmp_path: Path) -> None:
    for step in (1000, 900, 1100):
        make(tmp_path, step)
    for name in ("checkpoint-tmp", "checkpoint-1000-merged"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-9999").write_text("a file")
    assert [c.step for c in find_checkpoints(tmp_path)] == [900, 1000, 1100]
    retire(tmp_path, keep_last=2, best_step=None)
    assert names(tmp_path) == {
        "checkpoint-1000", "checkpoint-1100", "checkpoint-tmp", "checkpoint-1000-merged", "checkpoint-9999",
    }  # fmt: skip


def test_the_best_is_kept_and_a_faulty_one_does_not_count(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        make(tmp_path, step)
    retire(tmp_path, keep_last=1, best_step=20)
    assert names(tmp_path) == {"checkpoint-20", "checkpoint-40"}
    (make(tmp_path, 50) / MARKER).unlink()
    retire(tmp_path, keep_last=1, best_step=20)
    assert names(tmp_path) == {"checkpoint-20", "checkpoint-40", "checkpoint-50"}


def test_what_a_killed_run_was_writing_is_removed(tmp_path: Path) -> None:
    make(tmp_path, 10)
    (tmp_path / f"checkpoint-20{PARTIAL}").mkdir()
    (tmp_path / "checkpoint-5.deleted").mkdir()
    assert remove_leftovers(tmp_path) == ["checkpoint-20.partial", "checkpoint-5.deleted"]
    assert names(tmp_path) == {"checkpoint-10"}
