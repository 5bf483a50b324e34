"""recipes/dpo.py on real processes: one curve, exact resume, adapters, and a demo that learns."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.distributed.conftest import PATIENCE, ROOT, Finished, launch

pytestmark = pytest.mark.distributed

DEMO = ROOT / "recipes" / "demo"
SETTINGS = (
    "--data.train", str(DEMO / "pairs.jsonl"), "--data.eval", str(DEMO / "pairs_eval.jsonl"), "--data.max_rows", "60",
    "--train.global_batch_size", "10", "--train.max_steps", "5", "--train.learning_rate", "1e-3",
    "--train.max_tokens_per_micro_batch", "150", "--checkpoint.save_every", "3", "--checkpoint.save_every_minutes", "0",
)  # fmt: skip


@pytest.fixture
def dpo(tmp_path: Path, base: Path):
    def run(name: str, layout: str, *arguments: str, flags: tuple[str, ...] = ()) -> Finished:
        folder = tmp_path / name
        command = ["--model.name_or_path", str(base), *SETTINGS, *arguments, "--output_dir", str(folder)]
        code, output = launch(ROOT / "recipes" / "dpo.py", command, layout=layout, flags=flags)
        assert code == 0, output
        return Finished(code, output, folder)

    return run


def assert_same(mine: Finished, wanted: Finished) -> None:
    assert len(mine.steps()) == len(wanted.steps()) == 5
    for one, other in zip(mine.steps(), wanted.steps(), strict=True):
        for key in ("loss", "grad_norm", "rewards/margins", "rewards/accuracies", "logps/chosen"):
            assert one[key] == pytest.approx(other[key], rel=1e-5, abs=1e-6), (one["step"], key)
    for one, other in zip(mine.evaluations(), wanted.evaluations(), strict=True):
        assert one["eval_pairs"] == other["eval_pairs"] == 60
        assert one["eval_loss"] == pytest.approx(other["eval_loss"], rel=1e-5)


def test_dpo_follows_one_curve_on_every_layout_and_resumes(dpo, tmp_path: Path) -> None:
    here, there, apart = (("--data.cache_dir", str(tmp_path / name)) for name in ("here", "there", "apart"))
    wanted = dpo("single", "single", *here)
    assert wanted.output.count("rows: computed\n") == 2
    assert wanted.evaluations()[0]["eval_loss"] == pytest.approx(math.log(2), abs=1e-6), "E10: nothing is learnt yet"
    assert wanted.evaluations()[0]["eval_rewards/margins"] == pytest.approx(0.0, abs=1e-6)
    assert wanted.evaluations()[-1]["eval_loss"] < 0.68
    for layout, cache, how in (("fsdp2", there, "\n"), ("ddp", here, " before"), ("fsdp2_tp", apart, "\n")):
        run = dpo(layout, layout, *cache)
        assert_same(run, wanted)
        assert len(re.findall(f"rows: computed{how}", run.output)) == 2, run.output
    mine, others = (
        {f.name: np.load(f) for f in (tmp_path / name / "reference").iterdir()} for name in ("here", "there")
    )
    assert mine.keys() == others.keys()
    for name, values in mine.items():
        np.testing.assert_allclose(values, others[name], atol=1e-4, err_msg="E11: stored and computed again")
    resumed = dpo("resumed", "ddp", "--resume", str(wanted.folder / "checkpoint-3"), *here)
    for mine, step in zip(resumed.steps(), wanted.steps()[3:], strict=True):
        assert mine["loss"] == pytest.approx(step["loss"], rel=1e-5), (
            "the reference is that of the start, not of step 3"
        )
        assert mine["rewards/margins"] == pytest.approx(step["rewards/margins"], rel=1e-4)


@pytest.mark.parametrize("layout", ["fsdp2_bf16", "ddp_bf16"])
def test_the_reference_stays_fp32_where_the_model_computes_in_bf16(dpo, layout: str) -> None:
    """A log-probability of -237.1 is -237 in bf16: margins would be rounding. Before the first step there are none."""
    first = dpo(layout, layout, "--train.max_steps", "1").evaluations()[0]
    assert first["eval_rewards/margins"] == pytest.approx(0.0, abs=1e-6)
    assert first["eval_rewards/chosen"] == pytest.approx(0.0, abs=1e-6)
    assert first["eval_loss"] == pytest.approx(math.log(2), abs=1e-6)


def test_the_reference_of_a_continued_adapter_is_that_adapter(dpo, sft, base: Path) -> None:
    """E10, and the base stays as it is."""
    first = sft(
        "sft", "single", "--model.name_or_path", str(base), "--data.train", str(DEMO / "train.jsonl"), "--data.max_rows",
        "100", "--adapter.method", "lora", "--train.max_steps", "10", "--train.learning_rate", "1e-3",
    )  # fmt: skip
    run = dpo("dpo", "fsdp2", "--adapter.name_or_path", str(first.folder / "model"))
    assert run.evaluations()[0]["eval_loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert run.evaluations()[0]["eval_rewards/margins"] == pytest.approx(0.0, abs=1e-4)
    assert "verified: all 28 trained tensors changed, all 20 others did not" in run.output
    before, after = (load_file(f.folder / "model" / "adapter_model.safetensors") for f in (first, run))
    assert before.keys() == after.keys()
    fresh = dpo("fresh", "single", "--adapter.method", "lora")
    assert fresh.evaluations()[0]["eval_loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert fresh.evaluations()[0]["eval_logps/chosen"] != pytest.approx(
        run.evaluations()[0]["eval_logps/chosen"], rel=0.01
    )


def test_the_demo_learns_with_no_arguments(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "recipes/dpo.py", "--output_dir", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=PATIENCE * 240, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    entries = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, *_, last = [entry for entry in entries if "eval_loss" in entry]
    assert first["eval_loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert last["eval_loss"] < 0.1
    assert last["eval_rewards/accuracies"] > 0.98
    assert (tmp_path / "run" / "model" / "README.md").is_file()
    AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--objective.loss", "sigmod"), "sigmoid"),
        (("--objective.label_smoothing", "0.1"), "means nothing for objective.loss: sigmoid"),
        (("--train.label_smoothing_factor", "0.1"), "objective.loss: robust"),
        (("--data.streaming", "true", "--train.max_steps", "3"), "data.streaming: the reference looks at all pairs"),
        (("--generate_rows", "2"), "generate_rows: this recipe generates no answers"),
        (
            ("--model.name_or_path", str(DEMO / "model"), "--data.train", str(DEMO / "train.jsonl")),
            "chosen+rejected",
        ),
    ],
)
def test_mistakes_are_said(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "recipes/dpo.py", "--output_dir", str(tmp_path / "run"), *arguments],
        capture_output=True, text=True, timeout=100, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
