"""An adapter knows its base: other weights at the same path are refused, the same weights in 16 bits are not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.demo import DEMO
from toolkit.adapters.base import check_base, fault, marks_of, write_marks
from toolkit.errors import UserError
from toolkit.finished import load_finished

ROOT = Path(__file__).parents[2]
SHORT = (
    "--data.max_rows",
    "40",
    "--train.max_steps",
    "4",
    "--train.global_batch_size",
    "8",
    "--checkpoint.save_every",
    "2",
)


def sft(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "recipes/sft.py", "--data.train", str(DEMO / "train.jsonl"), *SHORT, *arguments],
        capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
    )  # fmt: skip


def of_run(base: Path, folder: Path) -> tuple[str, ...]:
    return ("--model.name_or_path", str(base), "--adapter.method", "lora", "--output_dir", str(folder / "run"))


def scale(folder: Path, factor: float, only: str = "") -> None:
    tensors = load_file(folder / "model.safetensors")
    changed = {name: value * factor if only in name else value for name, value in tensors.items()}
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("method", ["lora", "pissa"])
def test_the_same_weights_are_known_again_in_16_bits(build, tmp_path: Path, method: str) -> None:
    model, _, _ = build(method=method, r=4)
    write_marks(marks_of(model, moved=method == "pissa"), tmp_path)
    for dtype in ("float32", "bfloat16", "float16"):
        again, _, _ = build(method="lora", model={"dtype": dtype})
        assert fault(again, tmp_path) is None
    assert fault(model, tmp_path / "none") is None, "an adapter of another tool says nothing"


@pytest.mark.parametrize("only", ["norm", "embed_tokens", "layers.1.mlp.up_proj"])
def test_a_part_that_changed_is_named(build, tiny_model: Path, tmp_path: Path, only: str) -> None:
    write_marks(marks_of(build(r=4)[0]), tmp_path)
    shutil.copytree(tiny_model, tmp_path / "base")
    scale(tmp_path / "base", 1.1, only)
    other, _, _ = build(tmp_path / "base", r=4)
    assert only in str(fault(other, tmp_path))
    with pytest.raises(UserError, match=f"base model at .*base is not the one.*{only}"):
        check_base(other, tmp_path)


def test_a_base_that_was_replaced_is_seen_everywhere(tmp_path: Path) -> None:
    """On the way: resuming, merging, chatting and going on, of a folder and of a checkpoint."""
    base, run = tmp_path / "base", tmp_path / "run"
    torch.manual_seed(0)
    config = json.loads((DEMO / "model" / "config.json").read_text())
    shutil.copytree(DEMO / "model", base)
    from transformers import LlamaConfig

    AutoModelForCausalLM.from_config(LlamaConfig(**config)).save_pretrained(base)
    adapter = of_run(base, tmp_path)
    done = sft(*adapter)
    assert done.returncode == 0, done.stderr
    assert (run / "model" / "base_marks.json").is_file()
    scale(base, 1.5)
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoint-4")
    done = sft(*adapter, "--resume", "auto")
    assert done.returncode == 2, done.stdout
    assert "is not the one that this adapter was trained on" in done.stderr
    with pytest.raises(UserError, match="is not the one"):
        load_finished(run / "checkpoint-2")
    scale(base, 1 / 1.5)
    done = sft(*adapter, "--resume", "auto")
    assert done.returncode == 0, done.stderr
    scale(base, 1.5)
    with pytest.raises(UserError, match="is not the one"):
        load_finished(run)
    done = sft(
        "--model.name_or_path", str(base), "--adapter.name_or_path", str(run), "--output_dir", str(tmp_path / "further")
    )
    assert done.returncode == 0, done.stderr
    assert "warning: adapter.name_or_path" in done.stdout
    assert "was trained on another base" in done.stdout


def test_a_mistake_found_late_leaves_no_folder_behind(tiny_model: Path, tmp_path: Path) -> None:
    adapter = (
        "--model.name_or_path",
        str(tiny_model),
        "--adapter.method",
        "lora",
        "--output_dir",
        str(tmp_path / "run"),
    )
    done = sft(*adapter, "--adapter.trainable_tokens", "[<none>]")
    assert done.returncode == 2
    assert "'<none>'" in done.stderr
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("kept")
    assert sft(*adapter, "--adapter.trainable_tokens", "[<none>]").returncode == 2
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]
    done = sft(*adapter)
    assert done.returncode == 0, done.stderr
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert sft(*adapter).returncode == 2
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before, "a run that has done something stays"


def test_a_merged_model_goes_with_the_run_that_is_replaced(tiny_model: Path, tmp_path: Path) -> None:
    adapter = (
        "--model.name_or_path",
        str(tiny_model),
        "--adapter.method",
        "lora",
        "--output_dir",
        str(tmp_path / "run"),
    )
    assert sft(*adapter, "--train.learning_rate", "1e-2").returncode == 0
    merged = subprocess.run(
        [sys.executable, "-c", "from toolkit.cli import main; main()", "merge", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=100, cwd=ROOT, check=False,
    )  # fmt: skip
    assert merged.returncode == 0, merged.stderr
    assert (tmp_path / "run" / "merged" / "config.json").is_file()
    (tmp_path / "run" / "mine.txt").write_text("kept")
    assert sft(*adapter, "--overwrite", "true").returncode == 0
    assert not (tmp_path / "run" / "merged").exists()
    assert (tmp_path / "run" / "mine.txt").is_file()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("--adapter.target_modules", "[q_prj]"), "did you mean q_proj"),
        (("--model.quantization", "nf4", "--adapter.method", "none"), "set adapter.method: lora"),
        (("--adapter.dropout", "1"), "adapter.dropout: must be below 1"),
    ],
)
def test_what_needs_no_weights_is_said_before_data_is_read(
    tiny_model: Path, tmp_path: Path, wrong: tuple[str, ...], words: str
) -> None:
    done = sft(*of_run(tiny_model, tmp_path), *wrong)
    assert done.returncode == 2
    assert words in done.stderr
    assert "rows" not in done.stdout
    assert not (tmp_path / "run").exists()
