"""The objective of pairs against a direct fp64 computation with transformers' own logits, however the batch is laid out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.objectives.test_preference_losses import BY_HAND, SETTINGS
from toolkit.attention import ISOLATED
from toolkit.data.collate import collate
from toolkit.data.fit import Piece
from toolkit.data.pairs import join
from toolkit.data.tokens import TokenRows
from toolkit.objectives.preference import Preference

# prompt, better answer, other answer
PAIRS = [([5, 6, 7, 8], [40, 41, 2], [50, 2]), ([9, 10], [60, 2], [61, 62, 63, 2]), ([11], [12, 2], [13, 14, 2])]
REFERENCE = np.array([[-17.0, -12.0], [-11.5, -22.0], [-12.0, -17.25]], dtype=np.float32)


def rows() -> TokenRows:
    def side(prompt: list[int], answer: list[int]) -> Piece:
        learnt = [False] * len(prompt) + [True] * len(answer)
        return Piece(np.array([*prompt, *answer], np.int32), np.array(learnt))

    joined = [join(side(prompt, better), side(prompt, other)) for prompt, better, other in PAIRS]
    built = TokenRows.build(
        [(p.input_ids, np.where(p.supervised, p.input_ids, -100)) for p in joined], [p.branches for p in joined]
    )
    return TokenRows(built.parts, REFERENCE)


def directly(model) -> list[tuple[tuple, tuple]]:
    """(p, n, q) of both answers of each pair, in double precision."""
    found = []
    for (prompt, *answers), known in zip(PAIRS, REFERENCE, strict=True):
        sides = []
        for answer, reference in zip(answers, known, strict=True):
            ids = torch.tensor([[*prompt, *answer]])
            log_probs = model(ids).logits[0].double().log_softmax(-1)
            picked = [log_probs[len(prompt) + i - 1, token] for i, token in enumerate(answer)]
            sides.append((sum(picked).item(), len(answer), float(reference)))
        found.append(tuple(sides))
    return found


@pytest.mark.parametrize("loss", BY_HAND)
@pytest.mark.parametrize("padding_free", [True, False])
def test_sums_weights_and_metrics(tiny_model: Path, loss: str, padding_free: bool) -> None:
    plain = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    expected = directly(plain)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=ISOLATED if padding_free else "sdpa")
    objective = Preference(loss, SETTINGS)
    parts = [[0, 2], [1]]  # however it is cut
    outputs = [
        objective(model, collate(rows(), np.array(part), padding_free=padding_free, pad_token_id=0)) for part in parts
    ]
    total = sum(output.loss_sum for output in outputs)
    assert total.item() == pytest.approx(sum(BY_HAND[loss](*pair) for pair in expected), rel=1e-4)
    assert sum(output.weight for output in outputs).item() == 3
    sums = {name: sum(output.metrics[name].item() for output in outputs) for name in outputs[0].metrics}
    assert sums["logps/chosen"] == pytest.approx(sum(better[0] for better, _ in expected), rel=1e-5)
    assert sums["logps/rejected"] == pytest.approx(sum(other[0] for _, other in expected), rel=1e-5)
    reward = {
        "orpo": lambda p, n, q: 0.3 * p / n, "simpo": lambda p, n, q: 0.3 * p / n, "cpo": lambda p, n, q: 0.3 * p,
    }.get(loss, lambda p, n, q: 0.3 * (p - q))  # fmt: skip
    margins = [reward(*better) - reward(*other) for better, other in expected]
    assert sums["rewards/margins"] == pytest.approx(sum(margins), rel=1e-3)
    assert sums["rewards/accuracies"] == sum(margin > 0 for margin in margins)


def test_a_filler_weighs_nothing_and_leads_back_to_every_weight(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=ISOLATED)
    for loss in ("sigmoid", "orpo"):
        output = Preference(loss)(model, collate(rows(), np.arange(0), padding_free=True, pad_token_id=0))
        assert (output.loss_sum.item(), output.weight.item()) == (0.0, 0.0)
        assert set(output.metrics) == set(
            Preference(loss)(model, collate(rows(), np.arange(1), padding_free=True, pad_token_id=0)).metrics
        )
        model.zero_grad()
        output.loss_sum.backward()
        assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
