"""Small updates must arrive: fp32 master weights by default, and a warning with figures where there are none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.distributed


@pytest.fixture
def stored_in_bf16(tiny_model: Path, tmp_path: Path) -> list[str]:
    """Arguments for one step at a rate of 1e-6 of a model that lies on disk in bf16."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "bf16")
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / "bf16")
    rows = [{"prompt": f"question {i}", "completion": f"answer {i}"} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    arguments = ["--model.name_or_path", str(tmp_path / "bf16"), "--data.train", str(tmp_path / "rows.jsonl")]
    arguments += ["--train.learning_rate", "1e-6", "--train.max_steps", "1", "--train.weight_decay", "0"]
    return [*arguments, "--train.global_batch_size", "8", "--train.warmup_steps", "0", "--train.schedule", "constant"]


def share_changed(run: Path, stored: Path) -> float:
    before, after = (
        AutoModelForCausalLM.from_pretrained(p, dtype="auto").state_dict() for p in (stored, run / "model")
    )
    different = sum(int((after[name].float() != value.float()).sum()) for name, value in before.items())
    return different / sum(value.numel() for value in before.values())


@pytest.mark.parametrize("layout", ["ddp_bf16", "fsdp2_bf16"])
def test_masters_are_fp32_whatever_the_files_hold(layout, stored_in_bf16, tmp_path, sft) -> None:
    """C13, E01."""
    run = sft(layout, layout, *stored_in_bf16)
    assert "float32 trainable; mixed precision bf16" in run.output
    assert "bf16 weights are trained directly" not in run.output
    assert share_changed(run.folder, tmp_path / "bf16") > 0.99


def test_bf16_masters_are_a_choice_and_said_with_the_share_they_lose(stored_in_bf16, tmp_path, sft) -> None:
    """E01: the printed share is that of the saved weights."""
    run = sft("pure", "fsdp2", *stored_in_bf16, "--model.dtype", "bfloat16")
    text = re.sub(r"\s+", " ", run.output)
    unchanged = re.search(r"bf16 weights are trained directly \(model\.dtype\): ([\d.]+)% of them did not change", text)
    assert unchanged, run.output
    assert float(unchanged[1]) > 50
    assert float(unchanged[1]) / 100 == pytest.approx(1 - share_changed(run.folder, tmp_path / "bf16"), abs=1e-3)
