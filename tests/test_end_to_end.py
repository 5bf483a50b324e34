"""Train, resume, merge, reload, generate: a whole run as its user has it, for adapters and for whole models, tied and not,
with two tokens that the model did not have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).parents[1]
ANSWERS = {"the question": "<|yes|> the user", "of the user": "<|no|> the system", "an answer": "<|no|> is <|yes|>"}
# The base has random weights, so that words are learned too: embeddings and head are trained beside the adapter.
LORA = ("--adapter.method", "lora", "--adapter.r", "16", "--adapter.alpha", "20")
ADAPTER = {
    "tied": (*LORA, "--adapter.modules_to_save", '["embed_tokens"]', "--adapter.tied_embeddings", "keep"),
    "untied": (*LORA, "--adapter.modules_to_save", '["embed_tokens", "lm_head"]'),
}
STEPS, STOP = 120, 80


def python(*arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=200, cwd=ROOT, env=environment, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def losses(folder: Path) -> list[float]:
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [entry["loss"] for entry in entries if "grad_norm" in entry]


@pytest.mark.parametrize("base", ["tied", "untied"])
@pytest.mark.parametrize("kind", ["adapter", "whole model"])
def test_train_resume_merge_reload_generate(
    fitted_models: dict[str, Path], tmp_path: Path, base: str, kind: str
) -> None:
    rows = [{"prompt": prompt, "completion": f" {answer}"} for prompt, answer in ANSWERS.items()]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = [
        "recipes/sft.py", "--model.name_or_path", str(fitted_models[base]), "--data.train", str(tmp_path / "train.jsonl"),
        "--model.new_special_tokens", '["<|yes|>", "<|no|>"]', "--train.global_batch_size", "3",
        "--train.learning_rate", "1e-2", "--train.schedule", "constant", "--train.max_steps", str(STEPS),
        "--checkpoint.save_every", str(STOP), "--checkpoint.save_every_minutes", "0",
        *(ADAPTER[base] if kind == "adapter" else ()),
    ]  # fmt: skip
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    python(*recipe, "--output_dir", str(whole))
    output = python(*recipe, "--output_dir", str(resumed), "--resume", str(whole / f"checkpoint-{STOP}"))
    assert f"going on after step {STOP} of {STEPS}" in output
    assert losses(resumed) == losses(whole)[STOP:], "to the bit"

    folder = resumed / "model"
    if kind == "adapter":
        merged = python("-c", "from toolkit.cli import main; main()", "merge", str(resumed))
        assert "merged - trained" in merged
        folder = resumed / "merged"
    model, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.config.tie_word_embeddings is (base == "tied")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == model.get_input_embeddings().weight.shape[0]
    for prompt, answer in ANSWERS.items():
        ids = torch.tensor([tokenizer(prompt).input_ids])
        said = model.generate(ids, do_sample=False, max_new_tokens=20)[0, ids.shape[1] :]
        assert said[-1] == tokenizer.eos_token_id, "it has learned to stop"
        assert tokenizer.decode(said[:-1]).strip() == answer
