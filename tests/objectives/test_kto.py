"""KTO against its formula in double precision, and against TRL's trainer on the rows that it makes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from toolkit.attention import ISOLATED
from toolkit.data.collate import collate
from toolkit.data.mismatched import MismatchedRows
from toolkit.data.tokens import TokenRows
from toolkit.errors import UserError
from toolkit.layout import build_layout
from toolkit.look import look, with_seen
from toolkit.objectives import ObjectiveModule
from toolkit.objectives.kto import KTO, KTOSettings, balance
from toolkit.steps import Capacity, Feed

# prompt, answer, desirable
ROWS = [([5, 6, 7, 8], [40, 41, 2], 1), ([9, 10], [60, 2], 0), ([11], [12, 13, 14, 2], 1), ([20, 21], [33, 2], 0)]
REFERENCE = [-19.0, -9.0, -28.0, -13.0]
MISMATCHED = [-14.0, -26.0, -13.0, -21.0]
SETTINGS = KTOSettings(beta=0.3, desirable_weight=1.5, undesirable_weight=0.8)


def rows() -> TokenRows:
    built = TokenRows.build(
        [(prompt + answer, [-100] * len(prompt) + answer) for prompt, answer, _ in ROWS], values=[v for *_, v in ROWS]
    )
    return TokenRows(built.parts, np.array(REFERENCE, np.float32)[:, None])


def log_prob(model, prompt: list[int], answer: list[int]) -> float:
    found = model(torch.tensor([prompt + answer])).logits[0].double().log_softmax(-1)
    return sum(found[len(prompt) + i - 1, token].item() for i, token in enumerate(answer))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("padding_free", [True, False])
@torch.no_grad()
def test_loss_and_metrics_however_the_batch_is_cut(tiny_model: Path, padding_free: bool) -> None:
    plain = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    own = rows()
    others = MismatchedRows(own.parts, np.array(MISMATCHED, np.float32)[:, None], seed=3)
    ratios = [log_prob(plain, p, a) - q for (p, a, _), q in zip(ROWS, REFERENCE, strict=True)]
    differences = []
    for row, known in enumerate(MISMATCHED):
        partner = others.partners[row]
        assert partner != row
        assert others.ids(row).tolist() == ROWS[row][0] + ROWS[partner][1]
        differences.append(log_prob(plain, ROWS[row][0], ROWS[partner][1]) - known)
    kl = max(0.0, sum(differences) / 4)
    assert kl > 0.1, "the test would say little"
    expected, rewards = 0.0, {1: [], 0: []}
    for ratio, (*_, good) in zip(ratios, ROWS, strict=True):
        weight = 1.5 if good else 0.8
        expected += weight * (1 - sigmoid(0.3 * (ratio - kl) if good else 0.3 * (kl - ratio)))
        rewards[good].append(0.3 * ratio)

    model = AutoModelForCausalLM.from_pretrained(
        tiny_model, attn_implementation=ISOLATED if padding_free else "sdpa"
    ).eval()
    layout, module = build_layout(), ObjectiveModule(model, KTO(SETTINGS))
    for most in (1, 2, 4):
        feed = Feed(own, Capacity(None, most), 0, 1, padding_free, 0, looked_at=others)
        seen = look(layout, module, feed.first_look(np.arange(4)), 4, lambda: None)
        np.testing.assert_allclose(seen[:, 0], differences, rtol=1e-4)
        outputs = [module(with_seen(batch, seen)) for batch in feed.micro_batches(np.arange(4))]
        assert len(outputs) == 4 // most
        assert sum(o.loss_sum.item() for o in outputs) == pytest.approx(expected, rel=1e-5)
        assert sum(o.weight.item() for o in outputs) == 4
        assert sum(o.metrics["kl"].item() for o in outputs) == pytest.approx(4 * kl, rel=1e-4)
        for name, good in (("chosen", 1), ("rejected", 0)):
            total = sum(o.metrics[f"rewards/{name}"] for o in outputs)
            assert total.tolist() == pytest.approx([sum(rewards[good]), 2], rel=1e-4)


def test_a_filler_weighs_nothing_and_reaches_every_weight(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=ISOLATED)
    filler = collate(rows(), np.arange(0), padding_free=True, pad_token_id=0)
    assert KTO().look(model, filler).shape == (0, 1)
    KTO()(model, filler).loss_sum.backward()  # as before the first step, when nothing was looked at
    model.zero_grad()
    output = KTO()(model, with_seen(filler, torch.ones(4, 1)))
    assert (output.loss_sum.item(), output.weight.item()) == (0.0, 0.0)
    output.loss_sum.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert {len(v) for k, v in output.metrics.items() if k != "kl"} == {2}


def test_an_answer_that_is_too_long_loses_its_end() -> None:
    short = MismatchedRows(rows().parts, seed=3, max_length=5)
    for row in range(4):
        prompt, answer = ROWS[row][0], ROWS[short.partners[row]][1]
        assert short.ids(row).tolist() == prompt + answer[: max(1, 5 - len(prompt))]
        assert short.labels(row).tolist() == [-100] * len(prompt) + short.ids(row)[len(prompt) :].tolist()
        assert short.lengths[row] == len(short.ids(row))
        assert short.labels_per_row[row] == (short.labels(row) != -100).sum()
    assert sorted(short.partners) == [0, 1, 2, 3]
    wanted = [len(ROWS[short.partners[row]][1]) > max(1, 5 - len(ROWS[row][0])) for row in range(4)]
    assert short.shortened == sum(wanted) > 0


def test_both_kinds_are_needed_and_their_balance_is_said() -> None:
    assert balance(np.array([1, 0, 1, 0], np.float32), KTOSettings()).startswith("answers: 2 desirable and 2 others")
    assert "warning" in balance(np.array([1, 0, 0, 0], np.float32), KTOSettings())
    assert "warning" not in balance(np.array([1, 0, 0, 0], np.float32), KTOSettings(desirable_weight=3.5))
    with pytest.raises(UserError, match="no undesirable answer among 3"):
        balance(np.ones(3, np.float32), KTOSettings())


@pytest.mark.filterwarnings("ignore")
def test_trl_gives_the_same(tiny_model: Path, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="compares with TRL's losses")
    from datasets import Dataset

    texts = [("the question of the user", "the answer is in the system", True), ("is the user in", "of", False),
             ("and", "system system", True), ("the answer", "user user user", False)]  # fmt: skip
    data = [
        {
            "prompt": [{"role": "user", "content": p}],
            "completion": [{"role": "assistant", "content": c}],
            "label": label,
        }
        for p, c, label in texts
    ]
    reference, policy = (AutoModelForCausalLM.from_pretrained(tiny_model) for _ in range(2))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    arguments = trl.KTOConfig(
        output_dir=str(tmp_path), beta=0.3, desirable_weight=1.5, undesirable_weight=0.8, per_device_train_batch_size=4,
        report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    trainer = trl.KTOTrainer(
        model=policy, ref_model=reference, args=arguments, train_dataset=Dataset.from_list(data),
        processing_class=AutoTokenizer.from_pretrained(tiny_model),
    )  # fmt: skip
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        wanted = trainer.compute_loss(trainer.model.eval(), dict(batch)).item()

    def ours(kind: str) -> TokenRows:
        kept = batch[f"{kind}attention_mask"].bool()
        parts = zip(batch[f"{kind}input_ids"], batch[f"{kind}completion_mask"], kept, strict=True)
        made = [(ids[mask].tolist(), ids.masked_fill(learnt == 0, -100)[mask].tolist()) for ids, learnt, mask in parts]
        return TokenRows.build(made, values=[float(label) for label in batch["label"]])

    own, others, layout = ours(""), ours("KL_"), build_layout()
    objective = KTO(SETTINGS)
    for model in (reference, policy):
        model.set_attn_implementation(ISOLATED)
        model.eval()
    everything = np.arange(4)
    with torch.no_grad():
        known = []
        for part in (own, others):  # without a reference, what is looked at is the log-probability itself
            zero = TokenRows(part.parts, np.zeros((4, 1), np.float32))
            known.append(
                objective.look(reference, collate(zero, everything, padding_free=True, pad_token_id=0)).numpy()
            )
        own, others = TokenRows(own.parts, known[0]), TokenRows(others.parts, known[1])
        feed = Feed(own, Capacity(None, 2), 0, 1, True, 0, looked_at=others)
        module = ObjectiveModule(policy, objective)
        seen = look(layout, module, feed.first_look(everything), 4, lambda: None)
        outputs = [module(with_seen(part, seen)) for part in feed.micro_batches(everything)]
    assert wanted != pytest.approx(0.575, abs=1e-3), "what it is while nothing is learnt"
    assert sum(o.loss_sum.item() for o in outputs) / 4 == pytest.approx(wanted, rel=1e-4)
