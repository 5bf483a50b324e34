"""Recipes beside sft.py and dpo.py: one curve on all layouts, resume, and a demo that learns."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.distributed.conftest import PATIENCE, ROOT, Finished, launch

pytestmark = pytest.mark.distributed

DEMO = ROOT / "recipes" / "demo"
STEPS = (
    "--model.name_or_path", str(DEMO / "model"), "--model.random_init", "true", "--train.max_steps", "5",
    "--checkpoint.save_every", "3", "--checkpoint.save_every_minutes", "0",
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """arguments: of a run of five steps with checkpoints. compared: keys of a step that must be the same on every layout.
    learnt: what the demo's last evaluation must reach, as (key, at most). head: the class that loads the result."""

    arguments: tuple[str, ...]
    compared: tuple[str, ...]
    learnt: tuple[str, float]
    head: Any = AutoModelForCausalLM


RECIPES = {
    "pretrain": Recipe(
        (
            "--data.train", str(DEMO / "documents.jsonl"), "--data.eval", str(DEMO / "documents_eval.jsonl"),
            "--data.max_rows", "60", "--data.max_length", "128", "--train.global_batch_size", "6",
            "--train.max_tokens_per_micro_batch", "256", "--train.learning_rate", "1e-3",
        ),
        (),
        ("eval_loss", 1.6),
    ),
    "distill": Recipe(
        (
            "--data.train", str(DEMO / "train.jsonl"), "--data.eval", str(DEMO / "eval.jsonl"), "--data.max_rows", "60",
            "--teacher.name_or_path", str(DEMO / "teacher"), "--train.global_batch_size", "10",
            "--train.max_tokens_per_micro_batch", "200", "--train.learning_rate", "1e-3",
        ),
        ("divergence", "cross_entropy"),
        ("eval_divergence", 0.3),
    ),
    "kto": Recipe(
        (
            "--data.train", str(DEMO / "judged.jsonl"), "--data.eval", str(DEMO / "judged_eval.jsonl"), "--data.max_rows",
            "60", "--train.global_batch_size", "10", "--train.max_tokens_per_micro_batch", "150", "--train.learning_rate",
            "1e-3",
        ),
        ("kl", "rewards/chosen", "rewards/rejected", "logps/chosen"),
        ("eval_loss", 0.2),
    ),
}  # fmt: skip
# The same recipe in another way, without a demo.
ALSO = {
    "distill top_k": replace(RECIPES["distill"], arguments=(*RECIPES["distill"].arguments, "--objective.top_k", "5")),
}


@pytest.mark.parametrize("name", [*RECIPES, *ALSO])
def test_one_curve_on_every_layout_and_after_a_resume(tmp_path: Path, name: str) -> None:
    recipe, file = (RECIPES | ALSO)[name], name.split()[0]

    def run(layout: str, *more: str) -> Finished:
        folder = tmp_path / (layout + "_resumed" * bool(more))
        arguments = [*STEPS, *recipe.arguments, *more, "--output_dir", str(folder)]
        code, output = launch(ROOT / "recipes" / f"{file}.py", arguments, layout=layout)
        assert code == 0, output
        return Finished(code, output, folder)

    wanted = run("single")
    assert len(wanted.steps()) == 5
    assert set(recipe.compared) <= set(wanted.steps()[0])
    assert "metrics" not in wanted.steps()[0], "the objective's figures stand beside the others"
    others = {0: [run("ddp"), run("fsdp2")], 3: [run("ddp", "--resume", str(wanted.folder / "checkpoint-3"))]}
    for start, runs in others.items():
        for mine in runs:
            assert [entry["step"] for entry in mine.steps()] == list(range(start + 1, 6))
            for one, other in zip(mine.steps(), wanted.steps()[start:], strict=True):
                for key in ("loss", "grad_norm", "learning_rate", "tokens", "label_tokens", *recipe.compared):
                    assert one[key] == pytest.approx(other[key], rel=1e-5, abs=1e-7), (
                        mine.folder.name,
                        one["step"],
                        key,
                    )
            last, expected = mine.evaluations()[-1], wanted.evaluations()[-1]
            assert last == pytest.approx(expected, rel=1e-4)
    model, told = recipe.head.from_pretrained(wanted.folder / "model", output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert AutoTokenizer.from_pretrained(wanted.folder / "model").pad_token_id == model.config.pad_token_id


@pytest.mark.parametrize("name", RECIPES)
def test_the_demo_learns_with_no_arguments(tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [sys.executable, f"recipes/{name}.py", "--output_dir", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=PATIENCE * 240, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    entries = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, *_, last = [entry for entry in entries if "eval_loss" in entry]
    key, at_most = RECIPES[name].learnt
    assert last[key] < at_most < first[key]
    assert (tmp_path / "run" / "model" / "README.md").is_file()
