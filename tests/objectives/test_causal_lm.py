"""The chunked loss against the plain one, and rows of a micro-batch against the same rows alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, Gemma2Config, GraniteConfig, LlamaConfig, PreTrainedModel, Qwen3Config

import toolkit.attention
from toolkit.data.collate import collate, row_borders
from toolkit.data.tokens import TokenRows
from toolkit.errors import UserError
from toolkit.objectives import causal_lm, head
from toolkit.objectives.causal_lm import CausalLanguageModeling
from toolkit.probe import probe_model

SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
FAMILIES = {
    "llama tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama untied": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**SIZES),
    "gemma2 softcaps and a window": Gemma2Config(
        **SIZES, sliding_window=5, final_logit_softcapping=3.0, attn_logit_softcapping=5.0, query_pre_attn_scalar=8
    ),
    "granite scaled logits": GraniteConfig(**SIZES, logits_scaling=4.0, tie_word_embeddings=True),
}


def build(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[name], attn_implementation="eager").float()
    # Larger weights than a fresh model's, so that a missed cap or scale shows.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1)
    return model


def rows(lengths: list[int], seed: int = 0) -> TokenRows:
    generator = np.random.default_rng(seed)
    parts = []
    for length in lengths:
        ids = generator.integers(3, 97, length)
        labels = np.where(generator.random(length) < 0.5, ids, -100)
        labels[-1] = ids[-1]
        parts.append((ids.tolist(), labels.tolist()))
    return TokenRows.build(parts)


def plain_loss(model: PreTrainedModel, data: TokenRows) -> torch.Tensor:
    """Sum of the cross-entropy of each row alone, from transformers' own logits."""
    total = torch.zeros(())
    for i in range(len(data)):
        logits = model(input_ids=torch.tensor(data.ids(i)[None].astype(np.int64))).logits[0, :-1].float()
        target = torch.tensor(data.labels(i)[1:].astype(np.int64))
        total = total + functional.cross_entropy(logits, target, reduction="sum", ignore_index=-100)
    return total


@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize("name", FAMILIES)
def test_loss_and_gradients_equal_the_plain_ones(name, chunk, padding_free, monkeypatch) -> None:
    monkeypatch.setattr(causal_lm, "_CHUNK_BYTES", chunk * 97 * 4)
    monkeypatch.setattr(head, "_BLOCK_BYTES", 2 * 97 * 4)
    data = rows([9, 17, 3, 12])
    model = build(name)
    expected = plain_loss(model, data)
    expected.backward()
    wanted = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()

    if padding_free:
        model.set_attn_implementation(toolkit.attention.ISOLATED)
    batch = collate(data, np.arange(4), padding_free=padding_free, pad_token_id=0)
    output = CausalLanguageModeling()(model, batch)
    (output.loss_sum * 0.5).backward()
    assert output.loss_sum.item() == pytest.approx(expected.item(), rel=1e-5)
    assert output.weight.item() == data.label_tokens
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.grad, wanted[n] * 0.5, rtol=1e-4, atol=1e-5)


def test_loss_of_a_known_row_by_hand() -> None:
    """By hand: two labelled positions of a four-token row, from fp64 log-softmax."""
    model = build("llama tied")
    data = TokenRows.build([([5, 6, 7, 8], [-100, -100, 7, 8])])
    logits = model(input_ids=torch.tensor([[5, 6, 7, 8]])).logits[0].double()
    by_hand = -(logits[1].log_softmax(-1)[7] + logits[2].log_softmax(-1)[8])
    model.set_attn_implementation(toolkit.attention.ISOLATED)
    output = CausalLanguageModeling()(model, collate(data, np.arange(1), padding_free=True, pad_token_id=0))
    assert output.loss_sum.item() == pytest.approx(by_hand.item(), rel=1e-6)
    assert output.weight.item() == 2


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_of_a_micro_batch_have_the_logits_they_have_alone(name) -> None:
    """B19: rows of 7 and 9 tokens in one row of 16."""
    data, model = rows([7, 9]), build(name).eval()
    alone = [model(input_ids=torch.tensor(data.ids(i)[None].astype(np.int64))).logits[0] for i in range(2)]
    model.set_attn_implementation(toolkit.attention.ISOLATED)
    batch = collate(data, np.arange(2), padding_free=True, pad_token_id=0)
    together = model(use_cache=False, **batch.model_inputs()).logits[0]
    for (start, end), expected in zip(row_borders(batch), alone, strict=True):
        assert (together[start:end] - expected).abs().max() < 1e-4
    first = batch.cu_seq_lens[1:-1] - 1
    assert (batch.targets[0, first] == -100).all(), "the last token of a row must not predict the next row"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_filler_reaches_every_parameter_and_weighs_nothing(name) -> None:
    """Law 2: a parameter without a gradient on one rank only would break the collectives of sharded layouts."""
    model = build(name)
    model.set_attn_implementation(toolkit.attention.ISOLATED)
    filler = collate(rows([5]), np.arange(0), padding_free=True, pad_token_id=0)
    output = CausalLanguageModeling()(model, filler)
    output.loss_sum.backward()
    assert output.loss_sum.item() == 0.0
    assert output.weight.item() == 0.0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_token_accuracy_counts_exact_predictions_when_evaluating(monkeypatch) -> None:
    monkeypatch.setattr(causal_lm, "_CHUNK_BYTES", 5 * 97 * 4)
    monkeypatch.setattr(head, "_BLOCK_BYTES", 2 * 97 * 4)
    model, parts, right = build("llama untied").eval(), [], 0
    for start, length in ((5, 9), (6, 17)):
        # What the model itself says, but for one token: predictions that are right lie in every chunk.
        ids = [start]
        while len(ids) < length:
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        ids[4] = (ids[4] + 1) % 97
        parts.append((ids, ids))
    data = TokenRows.build(parts)
    for i in range(2):
        predicted = model(input_ids=torch.tensor(data.ids(i)[None].astype(np.int64))).logits[0, :-1].argmax(-1).numpy()
        right += int((predicted == data.labels(i)[1:]).sum())
    with torch.no_grad():
        model.set_attn_implementation(toolkit.attention.ISOLATED)
        batch = collate(data, np.arange(2), padding_free=True, pad_token_id=0)
        output = CausalLanguageModeling()(model, batch)
    assert output.metrics["token_accuracy"].item() == right
    assert 5 < right < 24


@pytest.mark.parametrize("name", FAMILIES)
def test_probe_accepts_the_families_it_knows(name) -> None:
    model = build(name)
    model.set_attn_implementation(toolkit.attention.ISOLATED)
    probe_model(model, rows([9, 17]), padding_free=True)
    assert model.config._attn_implementation == toolkit.attention.ISOLATED


def test_probe_refuses_a_model_whose_rows_leak() -> None:
    model = build("llama tied")
    # Plain causal attention over the whole row, as a backend without isolation would compute it.
    toolkit.attention.AttentionInterface.register("leaky", lambda m, q, k, v, *a, **kw: _leaky(q, k, v, kw["scaling"]))
    model.set_attn_implementation("leaky")
    with pytest.raises(UserError, match="see each other"):
        probe_model(model, rows([9, 17]), padding_free=True)


def _leaky(query, key, value, scaling):
    key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    out = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return out.transpose(1, 2), None


def test_probe_refuses_a_head_that_the_chunked_loss_does_not_know() -> None:
    model = build("llama tied")
    model.lm_head.register_forward_hook(lambda module, inputs, output: output * 2)
    with pytest.raises(UserError, match="makes its logits"):
        probe_model(model, rows([9, 17]), padding_free=False)
