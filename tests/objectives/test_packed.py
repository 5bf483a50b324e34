"""The loss on a block of documents is that of the documents alone, or of the whole block where they see each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from toolkit.attention import ISOLATED
from toolkit.data.collate import collate
from toolkit.data.packed import pack
from toolkit.data.tokens import TokenRows
from toolkit.objectives.causal_lm import CausalLanguageModeling

DOCUMENTS = [[5, 9, 60, 33, 200, 7], [44, 45, 46], [12, 14, 90, 91], [70, 71]]


@torch.no_grad()
def alone(model, ids: list[int]) -> float:
    """Sum of the cross-entropies of a text, in double precision."""
    logits = model(torch.tensor([ids])).logits[0, :-1].double()
    return cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum").item()


@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("how", ["across", "whole"])
def test_the_loss_of_blocks(tiny_model: Path, how: str, isolated: bool, padding_free: bool) -> None:
    rows = TokenRows.build([(ids, ids) for ids in DOCUMENTS])
    blocks = pack(rows, size=7, how=how, isolated=isolated, seed=1, note=lambda line: None)
    plain = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    pieces = [ids.tolist() for block in range(len(blocks)) for ids, _ in blocks.pieces(block)]
    if isolated and how == "whole":
        assert sorted(pieces) == sorted(DOCUMENTS)
    expected = sum(alone(plain, piece) for piece in pieces if len(piece) > 1)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=ISOLATED if padding_free else "sdpa")
    batch = collate(blocks, np.arange(len(blocks)), padding_free=padding_free, pad_token_id=0)
    output = CausalLanguageModeling()(model.eval(), batch)
    assert output.loss_sum.item() == pytest.approx(expected, rel=1e-5)
    assert int(output.weight) == sum(len(piece) - 1 for piece in pieces) == blocks.label_tokens
    assert batch.tokens == sum(map(len, DOCUMENTS))
    assert batch.known.values is not None
    assert batch.known.values.isnan().all()
