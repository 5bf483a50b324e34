"""The sft recipe as a user runs it, on one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("padding_free", ["true", "false"])
def test_a_model_whose_padding_is_its_end_token_learns_to_stop(tiny_model: Path, tmp_path: Path, padding_free) -> None:
    """B05: masking "all padding ids" would also mask the end of every answer."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.eos_token_id
    for part in (tokenizer, model):
        part.save_pretrained(tmp_path / "base")
    questions = ["hi", "a rather longer question", "x", "one two three", "go", "what", "why not", "end"]
    chats = [
        [{"role": "user", "content": q}, {"role": "assistant", "content": "yo " * (i % 3 + 1)}]
        for i, q in enumerate(questions)
    ]
    rows = "".join(json.dumps({"messages": chat}) + "\n" for chat in chats)
    (tmp_path / "rows.jsonl").write_text(rows, encoding="utf-8")
    settings = {
        "model.name_or_path": tmp_path / "base", "data.train": tmp_path / "rows.jsonl", "output_dir": tmp_path / "run",
        "train.global_batch_size": 8, "train.micro_batch_size": 2, "train.max_steps": 60, "train.learning_rate": "1e-2",
        "train.padding_free": padding_free,
    }  # fmt: skip
    arguments = [str(part) for key, value in settings.items() for part in (f"--{key}", value)]
    done = subprocess.run(
        [sys.executable, "recipes/sft.py", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    for chat in chats:
        prompt = tokenizer.apply_chat_template(
            chat[:1], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        # 24 tokens are more than any answer here: without the end token in what is said, the limit ended it.
        said = model.generate(**prompt, do_sample=False, max_new_tokens=24)[0, prompt["input_ids"].shape[1] :]
        assert tokenizer.eos_token_id in said.tolist(), tokenizer.decode(said)
