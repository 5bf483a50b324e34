"""D14, D15: a merged folder is the trained model, tied or not; and a merge that loses the training leaves no folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from toolkit.adapters.adapted import CONFIG, WEIGHTS
from toolkit.adapters.folder import write_finished
from toolkit.errors import UserError
from toolkit.merge.fold import fold
from toolkit.merge.merge import merge
from toolkit.merge.proof import Proof, logits, prove

ROWS = [[5, 9, 60, 33, 200, 7, 12, 14, 90], [44, 45, 46, 47, 48]]
TOKENS = {"new_special_tokens": ["<a>", "<b>"]}


@pytest.fixture
def adapter(build, tmp_path: Path):
    """A trained adapter's folder, and the logits of the live model on ROWS as one tensor."""

    def make(folder: Path, *, steps: int = 3, rate: float = 1e-2, **keys) -> tuple[Path, torch.Tensor]:
        model, tokenizer, _ = build(folder, **keys)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
        for _ in range(steps):
            for row in ROWS:
                model(torch.tensor([row]), labels=torch.tensor([row])).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        trained = {n: p.detach() for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
        write_finished(model, trained, tokenizer, tmp_path / "adapter")
        return tmp_path / "adapter", all_logits(model)

    return make


@torch.no_grad()
def all_logits(model) -> torch.Tensor:
    model.eval()
    return torch.cat([model(torch.tensor([row])).logits[0].float() for row in ROWS])


ENDS = {
    "plain": {},
    "rows of new tokens": {"model": TOKENS},
    "both ends whole": {"modules_to_save": ["embed_tokens", "lm_head"], "tied_embeddings": "untie"},
    "one matrix, whole": {"modules_to_save": ["embed_tokens"], "tied_embeddings": "keep", "model": TOKENS},
    "head only, LoRA": {"target_modules": ["q_proj", "lm_head"], "tied_embeddings": "untie"},
    "embeddings only, LoRA": {"target_modules": ["q_proj", "embed_tokens"], "tied_embeddings": "untie"},
}
ONE_MATRIX = {"plain", "rows of new tokens", "one matrix, whole"}


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("base", ["tied", "untied"])
def test_the_merged_folder_gives_the_logits_of_the_live_model(
    adapter, fitted_models: dict[str, Path], tmp_path: Path, base: str, ends: str
) -> None:
    keys = dict(ENDS[ends])
    if base == "untied":
        keys.pop("tied_embeddings", None)
    folder, live = adapter(fitted_models[base], **keys)
    merged = merge(folder, tmp_path / "merged", ROWS, dtype=None, say=lambda message: None)
    assert merged.proof.fault is None
    again, told = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    torch.testing.assert_close(all_logits(again), live, rtol=1e-4, atol=1e-4)
    tied = base == "tied" and ends in ONE_MATRIX
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"] is tied
    with safe_open(tmp_path / "merged" / "model.safetensors", "pt") as file:
        assert ("lm_head.weight" in file.keys()) is not tied  # noqa: SIM118
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert tokenizer.chat_template
    assert len(tokenizer) <= again.get_input_embeddings().weight.shape[0]


@pytest.mark.parametrize(
    "method", ["dora", "rslora", "pissa", "olora", "loha", "lokr", "ia3", "vera", "oft", "hra", "miss"]
)
def test_every_method_merges(adapter, tiny_model: Path, tmp_path: Path, method: str) -> None:
    folder, live = adapter(tiny_model, method=method, r=4)
    merged = merge(folder, tmp_path / "merged", ROWS, dtype="float32", say=lambda message: None)
    assert merged.proof.fault is None
    assert merged.proof.merged_trained < 1e-5 < merged.proof.trained_base
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(all_logits(again), live, rtol=1e-4, atol=1e-4)


def test_bf16_is_rounded_once(adapter, tiny_model: Path, tmp_path: Path) -> None:
    """Every merged matrix is the fp32 sum, rounded; adding in bf16 would round the adapter's part before."""
    folder, _ = adapter(tiny_model, r=4, alpha=8, target_modules=["q_proj"])
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16).state_dict()
    merged = merge(folder, tmp_path / "merged", ROWS, dtype="bf16", say=lambda message: None)
    assert merged.proof.tolerance == 2e-2
    stored, parts = load_file(tmp_path / "merged" / "model.safetensors"), load_file(folder / WEIGHTS)
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    for layer in range(3):
        name = f"model.layers.{layer}.self_attn.q_proj"
        a, b = (parts[f"base_model.model.{name}.lora_{which}.weight"] for which in "AB")
        expected = (base[f"{name}.weight"].float() + 8 / 4 * (b @ a)).to(torch.bfloat16)
        assert torch.equal(stored[f"{name}.weight"], expected)
        untouched = f"model.layers.{layer}.self_attn.v_proj.weight"
        assert torch.equal(stored[untouched], base[untouched])


def test_a_whole_module_trained_in_fp32_becomes_what_the_base_has_there(build) -> None:
    keys = {"modules_to_save": ["embed_tokens"], "tied_embeddings": "keep"}
    model, _, _ = build(model={"dtype": "bfloat16"}, **keys)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert {parameter.dtype for parameter in fold(model).parameters()} == {torch.bfloat16}


def test_logits_of_narrow_weights_are_those_of_the_same_weights_widened(tiny_model: Path) -> None:
    narrow = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    found = logits(narrow, ROWS)
    assert {parameter.dtype for parameter in narrow.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(found, logits(narrow.float(), ROWS), rtol=0, atol=1e-5)


def test_an_adapter_that_changes_nothing_leaves_no_folder(adapter, tiny_model: Path, tmp_path: Path) -> None:
    folder, _ = adapter(tiny_model, steps=0)
    merged = merge(folder, tmp_path / "merged", ROWS, dtype=None, say=lambda message: None)
    assert "changes nothing" in str(merged.proof.fault)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter"]


def test_training_that_the_dtype_rounds_away_leaves_no_folder(adapter, tiny_model: Path, tmp_path: Path) -> None:
    folder, _ = adapter(tiny_model, steps=1, rate=1e-6)
    merged = merge(folder, tmp_path / "merged", ROWS, dtype="bf16", say=lambda message: None)
    assert "--dtype float32" in str(merged.proof.fault)
    assert not (tmp_path / "merged").exists()
    assert merge(folder, tmp_path / "merged", ROWS, dtype="float32", say=lambda message: None).proof.fault is None


def test_a_broken_adapter_is_named(adapter, tiny_model: Path, tmp_path: Path) -> None:
    folder, _ = adapter(tiny_model, target_modules=["q_proj"])
    tensors = load_file(folder / WEIGHTS)
    tensors[min(tensors)][0, 0] = float("nan")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"layers\.0\.self_attn\.q_proj.*NaN"):
        merge(folder, tmp_path / "merged", ROWS, dtype=None, say=lambda message: None)
    assert not (tmp_path / "merged").exists()


def test_a_base_that_is_gone_is_named(adapter, tiny_model: Path, tmp_path: Path) -> None:
    folder, _ = adapter(tiny_model)
    said = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**said, "base_model_name_or_path": str(tmp_path / "gone")}))
    with pytest.raises(UserError, match="gone"):
        merge(folder, tmp_path / "merged", ROWS, dtype=None, say=lambda message: None)


def test_distances_and_verdicts() -> None:
    base, trained = torch.tensor([[1.0, -2.0]]), torch.tensor([[2.0, -4.0]])
    proof = prove(base, trained, torch.tensor([[2.0, -3.9]]), 0.03)
    assert proof.trained_base == pytest.approx(2 / 4)
    assert proof.merged_trained == pytest.approx(0.1 / 4)
    assert proof.merged_base == pytest.approx(1.9 / 4)
    assert proof.fault is None
    assert "more than the 3e-02" in str(prove(base, trained, torch.tensor([[2.0, -3.8]]), 0.03).fault)
    assert "nearer to the base" in str(Proof(0.01, 0.02, 0.005, 0.03).fault)
    assert "more than" in str(Proof(0.1, float("nan"), 0.1, 0.03).fault)
    wider = torch.cat([base, torch.full((1, 1), 50.0)], dim=1)
    assert prove(wider, trained, trained, 0.03).trained_base == pytest.approx(2 / 4)
