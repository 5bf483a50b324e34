"""Failures that users of other tools have met with sharded models, on the demo's model and on small ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.distributed.conftest import ROOT, launch

pytestmark = pytest.mark.distributed

EXPORT = """
import gc, json, sys
from pathlib import Path
from transformers import AutoTokenizer
from benchmarks.memory import Peak, anonymous_bytes
from toolkit.config import ModelConfig, TrainConfig
from toolkit.export import export_model
from toolkit.layout import build_layout
from toolkit.models import load_model
from toolkit.objectives.causal_lm import CausalLanguageModeling
from toolkit.parallel.spread import spread
layout = build_layout()
model = load_model(ModelConfig(name_or_path={model!r}), seed=0)
size = sum(p.numel() * p.element_size() for p in model.parameters())
module, _ = spread(layout, model, CausalLanguageModeling(), TrainConfig())
tokenizer = AutoTokenizer.from_pretrained("recipes/demo/model")
gc.collect()
before = anonymous_bytes()
peak = Peak()
peak.start()
export_model(layout, module, tokenizer, Path({model!r}) / "exported")
(Path({model!r}) / f"growth-{{layout.dp_rank}}.json").write_text(json.dumps((peak.take() - before) / size))
layout.wait()
"""


def test_an_export_gathers_on_one_rank_only(tmp_path: Path, script, monkeypatch: pytest.MonkeyPatch) -> None:
    """C15: the first rank grows by about one model, the others by far less."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=640, hidden_size=512, intermediate_size=1536, num_hidden_layers=14, num_attention_heads=8
    )
    model = AutoModelForCausalLM.from_config(config)
    assert model.num_parameters() > 40e6
    model.save_pretrained(tmp_path / "model")
    # What is freed is given back, so that memory is what is in use.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**18))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code, output = script(EXPORT.format(model=str(tmp_path / "model")), "fsdp2")
    assert code == 0, output
    first, second = (json.loads((tmp_path / "model" / f"growth-{rank}.json").read_text()) for rank in range(2))
    assert 0.8 < first < 1.5
    assert second < 0.3
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model" / "exported").state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(saved[name], value), name


def test_a_tied_model_whose_file_holds_both_matrices(tmp_path: Path, sft) -> None:
    """C11: its config says tied and its file has a head too; the curve is that of DDP, or one message says why not."""
    demo, folder = ROOT / "recipes" / "demo" / "model", tmp_path / "model"
    torch.manual_seed(0)
    config = LlamaConfig(**{**json.loads((demo / "config.json").read_text()), "tie_word_embeddings": True})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for file in demo.iterdir():
        if not (folder / file.name).exists():
            (folder / file.name).write_bytes(file.read_bytes())
    arguments = ("--model.name_or_path", str(folder), "--train.max_steps", "2", "--generate_rows", "0")
    arguments += ("--data.train", str(ROOT / "recipes" / "demo" / "train.jsonl"))
    wanted = sft("ddp", "ddp", *arguments).steps()
    for name, flags in (("whole", ()), ("parts", ("--fsdp_cpu_ram_efficient_loading", "true"))):
        for mine, step in zip(sft(name, "fsdp2", *arguments, flags=flags).steps(), wanted, strict=True):
            assert mine["loss"] == pytest.approx(step["loss"], rel=1e-5), name
            assert mine["grad_norm"] == pytest.approx(step["grad_norm"], rel=1e-5), name


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_fp32_adapters_on_a_bf16_base(precision: str) -> None:
    """C10, C14: the base stays as it is, adapters train in fp32, FSDP2 follows DDP, all ranks have the same norm."""
    found = {}
    for layout in ("ddp", "fsdp2"):
        file = Path(__file__).with_name("adapter_run.py")
        code, output = launch(file, [], layout=layout, flags=("--mixed_precision", precision), timeout=120)
        assert code == 0, output
        told = [json.loads(line) for line in output.splitlines() if line.startswith('{"losses"')]
        assert len(told) == 2, output
        assert told[0] == told[1], "ranks differ"
        assert told[0]["adapters"] == ["torch.float32"]
        assert told[0]["base_unchanged"]
        assert told[0]["frozen"] > 10
        assert all(type(norm) is float for norm in told[0]["grad_norms"])
        # DDP's stay where its buckets are, through all steps; FSDP2's are let go.
        held = told[0]["gradients_held"]
        assert len(held) == 1
        assert (held[0] > 0) == (layout == "ddp")
        found[layout] = told[0]
    assert found["ddp"]["losses"][0] - found["ddp"]["losses"][-1] > 0.1, "nothing was learned"
    assert found["fsdp2"]["losses"] == pytest.approx(found["ddp"]["losses"], rel=1e-3)
    assert found["fsdp2"]["grad_norms"] == pytest.approx(found["ddp"]["grad_norms"], rel=1e-2)
