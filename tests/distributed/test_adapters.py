"""Adapters on real processes: one curve on every layout, exact resume, quantized bases, the same on all ranks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.demo import DEMO, demo_flags
from tests.distributed.conftest import Finished

pytestmark = pytest.mark.distributed

LAYOUTS = {
    "single": (),
    "ddp": (),
    "fsdp2": ("--fsdp_activation_checkpointing", "true"),
    "hsdp": (),
}
TOKENS = '["<|date|>", "<|money|>"]'


def flags(base: Path, **settings: object) -> list[str]:
    return demo_flags(
        **{
            "model.name_or_path": base, "model.random_init": "false", "adapter.method": "lora", "adapter.r": 4,
            "train.max_steps": 6, "train.global_batch_size": 10, "train.max_tokens_per_micro_batch": 200,
        }
        | settings
    )  # fmt: skip


def adapter(run: Finished) -> dict[str, torch.Tensor]:
    return load_file(run.folder / "model" / "adapter_model.safetensors")


def assert_same_curve(mine: Finished, wanted: Finished) -> None:
    assert len(mine.steps()) == len(wanted.steps())
    for one, other in zip(mine.steps(), wanted.steps(), strict=True):
        for key in ("loss", "grad_norm", "learning_rate"):
            assert one[key] == pytest.approx(other[key], rel=1e-5), (one["step"], key)


def test_an_adapter_follows_one_curve_on_every_layout(base: Path, sft) -> None:
    """Law 1, E09 and D13: ragged rows, several micro-batches, and recomputed activations where parameters are sharded."""
    arguments = flags(base, **{"model.new_special_tokens": TOKENS, "train.weight_decay": 0.1})
    runs = {name: sft(name, name, *arguments, flags=more) for name, more in LAYOUTS.items()}
    wanted = adapter(runs["single"])
    assert runs["single"].steps()[-1]["loss"] < runs["single"].steps()[0]["loss"] - 0.2
    for name, run in runs.items():
        assert_same_curve(run, runs["single"])
        assert "verified: all 29 trained tensors changed, all 20 others did not" in run.output, name
        assert "not the same on all processes" not in run.output
        mine = adapter(run)
        assert mine.keys() == wanted.keys()
        for key, value in wanted.items():
            torch.testing.assert_close(mine[key], value, rtol=1e-4, atol=1e-6)
        small = sum(file.stat().st_size for file in (run.folder / "model").iterdir())
        assert small < (base / "model.safetensors").stat().st_size / 4, "the base is not in the adapter's folder"


def test_a_resumed_adapter_is_the_uninterrupted_one(base: Path, sft) -> None:
    """D09: to the bit under FSDP2, and along the same curve under DDP, with dropout in the first of them."""
    sharded = [*flags(base, **{"adapter.dropout": 0.1}), "--checkpoint.save_every=3"]
    whole = sft("whole", "fsdp2", *sharded)
    checkpoint = whole.folder / "checkpoint-3"
    resumed = sft("resumed", "fsdp2", *sharded, "--resume", str(checkpoint))
    assert "going on after step 3 of 6" in resumed.output
    assert "verified: all 28 trained tensors changed" in resumed.output
    assert [step["loss"] for step in resumed.steps()] == [step["loss"] for step in whole.steps()[3:]]
    for key, value in adapter(whole).items():
        assert torch.equal(adapter(resumed)[key], value), key
    names = load_file(checkpoint / "shard-00001.safetensors").keys()
    assert any(name.endswith(".exp_avg_sq") for name in names)
    assert not any("base_layer" in name for name in names), "a checkpoint holds what is trained"

    plain = [*flags(base), "--checkpoint.save_every=3"]
    single = sft("single", "single", *plain)
    other = sft("other", "ddp", *plain, "--resume", str(single.folder / "checkpoint-3"))
    for mine, wanted in zip(other.steps(), single.steps()[3:], strict=True):
        assert mine["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
        assert mine["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-5)


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_a_4_bit_base_follows_one_curve_and_its_gradients_survive_an_evaluation(base: Path, sft) -> None:
    """bitsandbytes lays 4-bit weights out anew in eval mode on a CPU, for good, and gives no gradients then."""
    arguments = [
        *flags(base, **{"model.quantization": "nf4", "train.max_steps": 3}),
        f"--data.eval={DEMO / 'eval.jsonl'}",
        "--generate_rows=2",
        "--generate_max_tokens=4",
    ]
    wanted = sft("single", "single", *arguments)
    exact = sft("exact", "single", *flags(base, **{"train.max_steps": 3}))
    for step, near in zip(wanted.steps(), exact.steps(), strict=True):
        assert step["grad_norm"] == pytest.approx(near["grad_norm"], rel=0.15), "the gradients of nearly the same model"
        assert step["loss"] != near["loss"]
    for layout in ("ddp", "fsdp2"):
        run = sft(layout, layout, *arguments)
        assert_same_curve(run, wanted)
        assert "verified: all 28 trained tensors changed, all 20 others did not" in run.output
        assert "Excluding from FSDP2 sharding" not in run.output, "4-bit weights are sharded too"


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_int8_is_refused_where_it_cannot_be_sharded(base: Path, sft) -> None:
    run = sft("int8", "fsdp2", *flags(base, **{"model.quantization": "int8"}), expect=2)
    assert run.output.count("error: model.quantization: int8 weights cannot be sharded") == 1


DIFFERENT = """
import json, os, sys
import torch
from toolkit.errors import UserError
from toolkit.layout import build_layout
from toolkit.verify import Changes, refuse_different_starts
layout = build_layout()
module = torch.nn.Linear(3, 3, bias=False)
with torch.no_grad():
    module.weight.fill_(1.0)
refuse_different_starts(layout, module)
changes = Changes(module)
with torch.no_grad():
    module.weight[0, 0] += 1.0 + layout.accelerator.process_index
said = []
changes.tell(layout, module, said.append)
try:
    refuse_different_starts(layout, module)
except UserError as error:
    said.append(str(error))
sys.stdout.write(json.dumps(said) + "\\n")
sys.stdout.flush()
layout.wait()
"""


def test_processes_with_other_weights_are_seen(script) -> None:
    code, output = script(DIFFERENT, "ddp")
    assert code == 0, output
    told = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
    assert len(told) == 2
    for said in told:
        assert "1 trained tensors are not the same on all processes, the first: weight" in said[0]
        assert "different starting values of weight" in said[-1]
