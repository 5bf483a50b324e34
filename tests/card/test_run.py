"""The card that a run leaves: its figures are the run's own, its code runs, and pushing sends it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from tests.demo import DEMO, demo_flags
from tests.hub_server import hub

ROOT = Path(__file__).parents[2]
SETTINGS = {"data.eval_fraction": 0.1, "generate_rows": 4, "generate_max_tokens": 4, "train.max_steps": 4}


def run(flags: Sequence[str], **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "recipes/sft.py", *flags],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}, timeout=200, check=False,
    )  # fmt: skip


def cells(text: str, name: str) -> list[str]:
    """The cells of the table's row that begins with `name`."""
    row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in row.strip("|").split("|")[1:]]


def code_runs(card: ModelCard, folder: Path) -> str:
    """What the code in the card prints, run in the model's folder."""
    found = re.search(r"```python\n(.*?)```", card.text, re.DOTALL)
    assert found
    quick = found[1].replace("max_new_tokens=128", "max_new_tokens=4") + "\nprint(type(model).__name__)\n"
    done = subprocess.run(
        [sys.executable, "-c", quick], capture_output=True, text=True, cwd=folder, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_a_full_model_resumed_and_pushed(tmp_path: Path) -> None:
    """Four steps in two starts; the second one sends what it made."""
    out = tmp_path / "mine"
    first = demo_flags(**SETTINGS, **{"output_dir": out, "checkpoint.save_every": 2})
    assert (done := run(first)).returncode == 0, done.stderr
    card = ModelCard.load(out / "model" / "README.md")
    assert "The run was resumed" not in card.text
    (out / ".toolkit-run.json").write_text(json.dumps({"files": []}))  # as if it had died
    flags = [*first, "--resume", str(out / "checkpoint-2"), "--push_to_hub", "true", "--hub_model_id", "me/mine"]
    with hub() as state:
        done = run(flags, HF_ENDPOINT=state.address, HF_TOKEN="hf_secret", HF_HUB_OFFLINE="0")
    assert done.returncode == 0, done.stderr
    assert f"uploaded: {state.address}/me/mine" in done.stdout

    # the whole folder was sent, and is listed as the run's
    sent = {name: len(content) for name, content in state.files.items()}
    assert sent == {file.name: file.stat().st_size for file in (out / "model").iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(sent)
    manifest = json.loads((out / ".toolkit-run.json").read_text())
    assert manifest["finished"]
    assert "model/README.md" in manifest["files"]

    card = ModelCard.load(out / "model" / "README.md")
    assert card.data.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["toolkit", "sft"],
    }
    text = card.text
    assert "training went on after step 2" in text
    log = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [entry for entry in log if "label_tokens" in entry]
    losses = {entry["step"]: entry["eval_loss"] for entry in log if "eval_loss" in entry}
    assert cells(text, "loss") == [f"{losses[0]:.4f}", f"{losses[4]:.4f}"]
    answers = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert len(answers) == 4
    assert "the share of 4 of these rows" in text
    assert cells(text, "optimizer steps") == ["4"]
    seen = sum(entry["tokens"] for entry in steps), sum(entry["label_tokens"] for entry in steps)
    assert cells(text, "tokens seen") == [f"{seen[0]:,}, {seen[1]:,} of them learnt"]
    # 300 rows are read, a tenth of them held out; 270 train
    source = f"`{DEMO / 'train.jsonl'}`"
    assert cells(text, source)[:6] == ["300", "300", "0", "0", "0", "270"]
    assert text.count(f"| {source} | 300 | 300 | 0 | 0 | 0 | 30 |") == 1
    embedded = re.search(r"```yaml\n(.*?)\n```", text, re.DOTALL)
    assert embedded
    assert yaml.safe_load(embedded[1]) == yaml.safe_load((out / "config.yaml").read_text())
    assert "hf_secret" not in str(card)
    # on the hub, the code reads it from there; here from the folder
    here = ModelCard(str(card).replace('path = "me/mine"', 'path = "."'))
    assert here.text != card.text
    assert code_runs(here, out / "model") == "LlamaForCausalLM"


@pytest.fixture
def base(tiny_model: Path, tmp_path: Path) -> Path:
    """A base with a card of its own, in a folder that could be an id of the hub."""
    folder = tmp_path / "base"
    folder.mkdir()
    for file in tiny_model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# Base\n")
    return folder


def test_an_adapter_with_a_new_token(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "adapted"
    adapter = {"adapter.method": "lora", "adapter.r": 4, "adapter.target_modules": "[q_proj,v_proj]"}
    model = {"model.name_or_path": base, "model.random_init": "false", "model.new_special_tokens": "[<|x|>]"}
    done = run(demo_flags(**adapter, **model, **{"data.max_rows": 20, "train.max_steps": 1, "output_dir": out}))
    assert done.returncode == 0, done.stderr
    card = ModelCard.load(out / "model" / "README.md")
    assert card.data.to_dict() == {
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["toolkit", "sft", "lora"],
        "license": "cc-by-4.0",
    }
    assert "lora, r 4, lora_alpha 32; on `q_proj`, `v_proj`; beside it the embeddings of 1 tokens." in card.text
    # q: 32 to 32, v: 32 to 16, rank 4, in 3 layers; and a row of 32
    assert f"Trained parameters: {3 * (4 * (32 + 32) + 4 * (32 + 16)) + 32:,} of " in card.text
    assert "no evaluation rows" in card.text
    assert f"`{base}`" in card.text
    assert "peft 0." in card.text
    assert code_runs(card, out / "model") == "PeftModelForCausalLM"
