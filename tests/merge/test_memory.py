"""A merge holds one model and one file of it, not two models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

ROOT = Path(__file__).parents[2]
MERGE = """
import gc, json, sys
from pathlib import Path
from benchmarks.memory import Peak, anonymous_bytes
from toolkit.merge import merge as module
folder = Path({folder!r})
module._SHARD = "{shard}MB"
gc.collect()
before, peak = anonymous_bytes(), Peak()
peak.start()
merged = module.merge(folder / "adapter", folder / "merged", [[5, 6, 7, 8]], dtype=None, say=print)
assert merged.proof.fault is None, merged.proof
sys.stdout.write(json.dumps((peak.take() - before) / 1e6))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_merge_needs_one_model_and_one_file(tiny_model: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=640, hidden_size=512, intermediate_size=1536, num_hidden_layers=16, num_attention_heads=8
    )
    model = AutoModelForCausalLM.from_config(config)
    size = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6
    assert size > 180
    model.save_pretrained(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.save_pretrained(tmp_path / "base")
    adapted = get_peft_model(
        model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    )
    adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    adapted.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    shard = 40
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MALLOC_MMAP_THRESHOLD_": str(2**18), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", MERGE.format(folder=str(tmp_path), shard=shard)],
        capture_output=True, text=True, timeout=200, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "merged").glob("*.safetensors"))) > 3
    assert json.loads(done.stdout.splitlines()[-1]) < size + shard
