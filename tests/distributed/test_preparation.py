"""Ranks that wait for tokenized data: without a collective, and tokenizing each row once between them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.distributed

# The process group gives up after 5 seconds; tokenizing takes longer than that.
CODE = """
import os
import time
from datetime import timedelta
import torch
from transformers import AutoTokenizer
from toolkit.config import DataConfig
from toolkit.data import tokenizing
from toolkit.data.prepare import prepare

rank = os.environ["RANK"]
original = tokenizing.encode_batch
def slow_encode(examples, *arguments, **options):
    with open(f"{FOLDER}/encoded-{rank}", "a") as file:
        file.write("x" * len(examples))
    time.sleep(SECONDS * len(examples) / 200)
    return original(examples, *arguments, **options)
tokenizing.encode_batch = slow_encode
torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=5))
tokenizer = AutoTokenizer.from_pretrained(MODEL)
config = DataConfig(train=f"{FOLDER}/a.jsonl", num_proc=1)
data = prepare(config, tokenizer, seed=0, prompts=0, note=lambda message: None)
found = [None] * torch.distributed.get_world_size()
torch.distributed.all_gather_object(found, (data.fingerprint, len(data.train), data.train.tokens))
assert len(set(found)) == 1 and found[0][1] == 200, found
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize(("processes", "seconds"), [(2, 12), (4, 1)])
def test_ranks_wait_longer_than_a_collective_may(
    script, tiny_model, tmp_path: Path, monkeypatch, processes, seconds
) -> None:
    """C08, C09."""
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    rows = [{"prompt": f"q{i}", "completion": f"a{i}"} for i in range(200)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    head = f"FOLDER, MODEL, SECONDS = {str(tmp_path)!r}, {str(tiny_model)!r}, {seconds}\n"
    code, output = script(head + CODE, "ddp", flags=("--num_processes", str(processes)))
    assert code == 0, output
    encoded = {file.name: len(file.read_text()) for file in tmp_path.glob("encoded-*")}
    assert list(encoded.values()) == [200], encoded  # one rank, each row once


def test_a_stream_gives_the_same_curve_on_any_layout(sft, tmp_path: Path) -> None:
    """Every row goes to exactly one rank, and the losses are those of one process."""
    demo = Path(__file__).parents[2] / "recipes" / "demo"
    common = ["--model.name_or_path", str(demo / "model"), "--model.random_init", "true"]
    common += ["--data.train", str(demo / "train.jsonl"), "--data.max_length", "256", "--train.max_steps", "3"]
    common += ["--train.global_batch_size", "6", "--train.max_tokens_per_micro_batch", "256"]
    stream = [*common, "--data.streaming", "true", "--data.shuffle_window", "50"]
    one = sft("one", "single", *stream, flags=("--num_processes", "1"))
    four = sft("four", "ddp", *stream, flags=("--num_processes", "4"))
    plain = sft("plain", "single", *common, "--data.shuffle", "false", flags=("--num_processes", "1"))
    in_order = sft("in_order", "fsdp2", *stream, "--data.shuffle", "false", flags=("--num_processes", "2"))
    for a, b in ((one, four), (plain, in_order)):
        assert [s["loss"] for s in a.steps()] == pytest.approx([s["loss"] for s in b.steps()], rel=1e-5)
        assert [s["grad_norm"] for s in a.steps()] == pytest.approx([s["grad_norm"] for s in b.steps()], rel=1e-4)
    assert [s["loss"] for s in one.steps()] != [s["loss"] for s in plain.steps()]
    assert "train, as far as it was read: 18 rows = 18 whole" in four.output
