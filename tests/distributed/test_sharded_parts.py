"""Tensor and context parallelism on what the demo's model does not have, and the refusals before anything is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Qwen3Config

from tests.distributed.conftest import ROOT

pytestmark = pytest.mark.distributed

VOCABULARY = """
import torch, sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor, Shard
from toolkit.layout import build_layout
from toolkit.objectives import causal_lm
from toolkit.parallel.vocabulary import VocabularyShard

layout = build_layout()
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
torch.manual_seed(0)
hidden, weight, bias = torch.randn(37, 16), torch.randn(24, 16), torch.randn(24)
weight[3], bias[3] = weight[17], bias[17]  # the two largest logits are often equal, on different ranks
targets = torch.randint(0, 24, (37,))
targets[:6] = 17
causal_lm._CHUNK_BYTES = 24 * 4 * 10  # several chunks
def loss(weight, bias, shard, training, softcap, smoothing):
    hidden_here = hidden.clone().requires_grad_()
    weight, bias = (t.detach().clone().requires_grad_() for t in (weight, bias))
    more = (targets, 1.5, softcap, training, shard, smoothing)
    total, correct = causal_lm._ChunkedCrossEntropy.apply(hidden_here, weight, bias, *more)
    if training:
        (2 * total).backward()
    return total, correct, hidden_here.grad, weight.grad, bias.grad
parts = [distribute_tensor(t, mesh, [Shard(0)]) for t in (weight, bias)]
shard = VocabularyShard.of(parts[0])
for softcap, smoothing in ((None, 0.0), (4.0, 0.0), (None, 0.1), (4.0, 0.1)):
    whole = loss(weight, bias, None, True, softcap, smoothing)
    mine = loss(*(p.to_local() for p in parts), shard, True, softcap, smoothing)
    rows = slice(shard.start, shard.start + shard.size)
    torch.testing.assert_close(mine[0], whole[0])
    torch.testing.assert_close(mine[2], whole[2])
    torch.testing.assert_close(mine[3], whole[3][rows])
    torch.testing.assert_close(mine[4], whole[4][rows])
    whole = loss(weight, bias, None, False, softcap, smoothing)
    mine = loss(*(p.to_local() for p in parts), shard, False, softcap, smoothing)
    torch.testing.assert_close(mine[0], whole[0])
    assert mine[1] == whole[1], (mine[1], whole[1])
sys.stdout.write(f"rank {layout.dp_rank} agrees, {int(whole[1])} right\\n")
sys.stdout.flush()
layout.wait()
"""


def test_a_split_vocabulary_gives_the_loss_and_the_gradients_of_the_whole(script) -> None:
    code, output = script(VOCABULARY, "ddp")
    assert code == 0, output
    assert "rank 0 agrees" in output, output
    assert "rank 1 agrees" in output, output


def model_folder(folder: Path, config, *, weights: bool) -> Path:
    """A tiny model of a family with the demo's tokenizer."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    if weights:
        model.save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    for file in (ROOT / "recipes" / "demo" / "model").iterdir():
        if "config.json" not in file.name or file.name.startswith("tokenizer"):
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


SIZES = {
    "vocab_size": 640, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
}  # fmt: skip
FAMILIES = {
    # A head of its own, norms of queries and keys; weights are read from the disk in parts.
    "qwen3": lambda: Qwen3Config(**SIZES, tie_word_embeddings=False, initializer_range=0.2),
    # Sliding windows, soft-capped scores and logits, tied.
    "gemma2": lambda: Gemma2Config(**SIZES, sliding_window=8, initializer_range=0.2, query_pre_attn_scalar=16),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_with_more_than_the_demos_model_follow_one_curve(family: str, tmp_path: Path, sft) -> None:
    folder = model_folder(tmp_path / "model", FAMILIES[family](), weights=True)
    arguments = [
        "--model.name_or_path", str(folder), "--data.train", str(ROOT / "recipes" / "demo" / "train.jsonl"),
        "--train.max_steps", "4", "--train.learning_rate", "1e-2", "--train.global_batch_size", "8",
        "--train.max_tokens_per_micro_batch", "120",
    ]  # fmt: skip
    wanted = sft("single", "single", *arguments).steps()
    assert wanted[0]["loss"] - wanted[-1]["loss"] > 0.1, "nothing was learned: equal curves say nothing"
    four = ("--parallelism_config_dp_shard_size", "1", "--parallelism_config_cp_size", "4")
    for name, layout, flags in (("tp", "fsdp2_tp", ()), ("cp", "fsdp2_cp", ()), ("cp x 4", "fsdp2_cp", four)):
        run = sft(name, layout, *arguments, flags=flags)
        for mine, step in zip(run.steps(), wanted, strict=True):
            for key in ("loss", "grad_norm", "label_tokens", "tokens"):
                assert mine[key] == pytest.approx(step[key], rel=2e-5), (name, key, mine, step)
        saved = AutoModelForCausalLM.from_pretrained(run.folder / "model")
        config = json.loads((run.folder / "model" / "config.json").read_text())
        assert config["architectures"] == [type(saved).__name__]
        assert "distributed_config" not in config


@pytest.mark.parametrize(
    ("layout", "flags", "message"),
    [
        (
            "fsdp2_tp",
            ("--num_processes", "3", "--parallelism_config_dp_shard_size", "1", "--parallelism_config_tp_size", "3"),
            "parallelism_config_tp_size: 3 does not divide num_attention_heads of llama, which is 8",
        ),
        (
            "fsdp2_cp",
            ("--num_processes", "3", "--parallelism_config_dp_shard_size", "1", "--parallelism_config_cp_size", "3"),
            "3 devices cannot share 8 attention heads and 8 key-value heads of llama evenly",
        ),
        ("fsdp2_tp", ("--num_processes", "2"), "dp_shard_size 2 x tp_size 2 is 4, but num_processes is 2"),
        (
            "ddp_accumulate",
            ("--gradient_accumulation_steps", "16"),
            "--gradient_accumulation_steps of accelerate launch is 16: on 2 devices that is 32 micro-batches",
        ),
    ],
)
def test_sizes_that_cannot_be_are_one_line(layout: str, flags: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", "--config_file", f"accelerate_configs/{layout}.yaml",
         "--main_process_port", "0", *flags, "recipes/sft.py", "--output_dir", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=100, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert message in errors[0]
