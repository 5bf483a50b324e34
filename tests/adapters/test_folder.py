"""The adapter's folder: the same bytes from every process, and PiSSA and OLoRA as LoRA on the base as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from toolkit.adapters.adapted import CONFIG, WEIGHTS
from toolkit.adapters.folder import write_adapter


def train_a_little(model, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(3):
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}


@pytest.mark.parametrize("method", ["pissa", "olora", "lora", "rslora", "vera", "ia3"])
def test_what_is_written_does_on_the_base_what_was_trained(
    build, tiny_model: Path, tmp_path: Path, method: str
) -> None:
    model, tokenizer, _ = build(method=method, r=4, alpha=8)
    ids = torch.tensor([tokenizer("the question of the user is in the answer").input_ids])
    written = write_adapter(model, train_a_little(model, ids), tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    before = base(ids).logits
    again = PeftModel.from_pretrained(base, str(tmp_path)).eval()
    with torch.no_grad():
        live = model.eval()(ids).logits
        torch.testing.assert_close(again(ids).logits, live, rtol=1e-4, atol=1e-4)
    assert (live - before).abs().max() > 1e-3
    stored = load_file(tmp_path / WEIGHTS)
    assert stored.keys() == written.keys()
    said = json.loads((tmp_path / CONFIG).read_text())
    assert said["base_model_name_or_path"] == str(tiny_model)
    if method in ("pissa", "olora"):
        assert (said["r"], said["lora_alpha"], said["init_lora_weights"]) == (8, 16, True)


def test_names_stand_in_one_order(build, tmp_path: Path) -> None:
    model, tokenizer, _ = build()
    ids = torch.tensor([tokenizer("the answer").input_ids])
    write_adapter(model, train_a_little(model, ids), tmp_path)
    names = json.loads((tmp_path / CONFIG).read_text())["target_modules"]
    assert len(names) == 7  # peft shortens a long list to the ends that say the same
    assert names == sorted(names)
