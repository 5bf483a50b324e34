"""`toolkit merge`: where it writes, what it refuses, and how it ends."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from toolkit.adapters.folder import write_finished
from toolkit.cli import merge as command
from toolkit.errors import UserError


def arguments(run: Path, output: Path | None = None, dtype: str | None = None) -> argparse.Namespace:
    return argparse.Namespace(run=run, output=output, dtype=dtype)


@pytest.fixture
def run(build, tiny_model: Path, tmp_path: Path):
    """A run's folder with an adapter of `moved`, its configuration and its data."""

    def make(moved: float = 0.02) -> Path:
        model, tokenizer, _ = build(r=4)
        trained = {n: p.detach() for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
        for tensor in trained.values():
            tensor.add_(moved)
        rows = [{"prompt": "the question", "completion": " of the user"}] * 20
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        write_finished(model, trained, tokenizer, tmp_path / "run" / "model")
        (tmp_path / "run" / "config.yaml").write_text(
            f"model: {{name_or_path: {tiny_model}}}\nadapter: {{method: lora, r: 4}}\ndata: {{train: {tmp_path}/rows.jsonl}}\n"
            "output_dir: run\na_key_of_another_recipe: 3\n"
        )
        return tmp_path / "run"

    return make


def test_it_compares_on_the_runs_rows_and_writes_beside_them(run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run()
    command.run(arguments(folder))
    printed = capsys.readouterr().out
    assert "logits on 8 rows" in printed
    assert "no training rows" not in printed
    AutoModelForCausalLM.from_pretrained(folder / "merged")
    with pytest.raises(UserError, match=r"--output.*merged exists already"):
        command.run(arguments(folder))
    with pytest.raises(UserError, match="whole model already"):
        command.run(arguments(folder / "merged"))


def test_without_the_runs_data_it_says_on_what_it_compares(run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run()
    (folder.parent / "rows.jsonl").unlink()
    command.run(arguments(folder / "model", dtype="bf16"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "no training rows to compare on" in printed
    assert "rows.jsonl" in printed
    merged = AutoModelForCausalLM.from_pretrained(folder / "model-merged", dtype="auto")
    assert merged.dtype == torch.bfloat16


def test_a_merge_that_changes_nothing_ends_with_exit_code_1(run, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="changes nothing") as caught:
        command.run(arguments(run(moved=0.0)))
    assert str(caught.value.code).startswith("error: ")  # printed by the interpreter, which then exits with 1
    assert not (tmp_path / "run" / "merged").exists()


@pytest.mark.parametrize(("dtype", "words"), [("int8", "accepted"), ("auto", "--dtype auto")])
def test_dtypes_that_cannot_be(run, dtype: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        command.run(arguments(run(), dtype=dtype))


def test_a_place_that_cannot_be_written_is_said_before_anything_is_read(run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere does not exist"):
        command.run(arguments(run(), output=tmp_path / "nowhere" / "merged"))


def test_a_disk_without_room_is_said_before_anything_is_written(run, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run()
    monkeypatch.setattr("shutil.disk_usage", lambda path: argparse.Namespace(free=1000))
    with pytest.raises(UserError, match=r"needs 0\.0 GB, and 0\.0 GB are free"):
        command.run(arguments(folder))
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "model"]
