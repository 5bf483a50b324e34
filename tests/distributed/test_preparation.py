"""Ranks that wait for tokenized data: without a collective, and tokenizing each row once between them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.distributed.conftest import launch

pytestmark = pytest.mark.distributed

# The group of processes gives up after 5 seconds; tokenizing takes longer than that.
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
torch.distributed.init_process_group("gloo")
torch.distributed.barrier()  # all have imported what they need
impatient = torch.distributed.new_group(timeout=timedelta(seconds=5))
tokenizer = AutoTokenizer.from_pretrained(MODEL)
for repeat in range(REPEATS):
    config = DataConfig(train=f"{FOLDER}/a.jsonl", num_proc=1, cache_dir=f"{FOLDER}/cache{repeat}")
    data = prepare(config, tokenizer, seed=0, prompts=0, note=lambda message: None)
    found = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, (data.fingerprint, len(data.train), data.train.tokens), group=impatient)
    assert len(set(found)) == 1 and found[0][1] == 200, found
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def write_rows(folder: Path) -> None:
    rows = [{"prompt": f"q{i}", "completion": f"a{i}"} for i in range(200)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def encoded(folder: Path) -> dict[str, int]:
    """Rows that each process tokenized."""
    return {file.name: len(file.read_text()) for file in folder.glob("encoded-*")}


@pytest.mark.parametrize(("processes", "seconds", "repeats"), [(2, 12, 1), (4, 0.2, 10)])
def test_ranks_wait_longer_than_a_collective_may(
    script, tiny_model, tmp_path: Path, processes, seconds, repeats
) -> None:
    """C08; C09, ten times on an empty cache."""
    write_rows(tmp_path)
    settings = (str(tmp_path), str(tiny_model), seconds, repeats)
    code, output = script(
        f"FOLDER, MODEL, SECONDS, REPEATS = {settings!r}\n" + CODE, "ddp", flags=("--num_processes", str(processes))
    )
    assert code == 0, output
    assert sum(encoded(tmp_path).values()) == 200 * repeats  # each row once, whoever it was


def test_two_jobs_at_once_tokenize_once_and_both_go_on(tiny_model, tmp_path: Path) -> None:
    """C09: two launches of two processes each that share nothing but the cache."""
    write_rows(tmp_path)
    settings = (str(tmp_path), str(tiny_model), 4, 1)
    path = tmp_path / "script.py"
    text = f"FOLDER, MODEL, SECONDS, REPEATS = {settings!r}\n" + CODE
    path.write_text(text.replace("encoded-{rank}", "encoded-{os.getpid()}"), encoding="utf-8")
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(launch, path, [], layout="ddp", flags=("--num_processes", "2")) for _ in range(2)]
        results = [job.result() for job in jobs]
    assert [code for code, _ in results] == [0, 0], results
    assert list(encoded(tmp_path).values()) == [200]


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
