"""The loss of a student and its gradients against full logits of both models, however the batch is laid out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

import toolkit.objectives.distillation as distillation
from toolkit.attention import ISOLATED
from toolkit.data.collate import collate
from toolkit.data.teaching import Teaching
from toolkit.data.tokens import TokenRows
from toolkit.objectives.distillation import Distillation, DistillationSettings

ROWS = [([5, 9, 60, 33, 200, 7], 3), ([44, 45, 46], 1), ([12, 14, 90, 91, 92, 93, 94], 5)]  # ids, first that is learnt
TEMPERATURE, WEIGHT = 1.6, 0.7


def rows() -> TokenRows:
    return TokenRows.build([(ids, [-100] * first + ids[first:]) for ids, first in ROWS])


@pytest.fixture
def models(tiny_model: Path, untied_model: Path):
    """(student, teacher): the teacher has other weights, and three rows of the vocabulary that stand for no token."""

    def load(padding_free: bool = False):
        attention = ISOLATED if padding_free else "sdpa"
        student = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=attention)
        teacher = AutoModelForCausalLM.from_pretrained(untied_model, attn_implementation=attention).eval()
        torch.manual_seed(5)
        with torch.no_grad():
            for parameter in teacher.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        teacher.resize_token_embeddings(teacher.config.vocab_size + 3, mean_resizing=False)
        return student.train(), teacher.requires_grad_(False)

    return load


def directly(student, teacher) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss, divergence and cross-entropy sums from all logits."""
    divergence, labels = [], []
    for ids, first in ROWS:
        tokens = torch.tensor([ids])
        mine, theirs = (model(tokens).logits[0, first - 1 : -1] for model in (student, teacher))
        theirs = theirs[:, : mine.shape[1]]
        log_q, log_p = ((logits / TEMPERATURE).log_softmax(-1) for logits in (mine, theirs))
        divergence.append((log_p.exp() * (log_p - log_q)).sum())
        labels.append(cross_entropy(mine, tokens[0, first:], reduction="sum"))
    d, ce = torch.stack(divergence).sum(), torch.stack(labels).sum()
    return (1 - WEIGHT) * ce + WEIGHT * TEMPERATURE**2 * d, d, ce


SETTINGS = DistillationSettings("forward_kl", TEMPERATURE, WEIGHT)


@pytest.mark.parametrize("padding_free", [True, False])
def test_loss_metrics_and_gradients(models, monkeypatch: pytest.MonkeyPatch, padding_free: bool) -> None:
    student, teacher = models()
    loss, divergence, labels = directly(student, teacher)
    loss.backward()
    expected = {name: p.grad for name, p in student.named_parameters()}
    student, teacher = models(padding_free)
    monkeypatch.setattr(distillation, "_CHUNK_BYTES", 4 * 3 * student.config.vocab_size)  # three positions
    objective = Distillation(SETTINGS, teacher)
    parts = [np.array([0, 2]), np.array([1]), np.arange(0)]  # however it is cut, and a filler
    outputs = [objective(student, collate(rows(), p, padding_free=padding_free, pad_token_id=0)) for p in parts]
    sum(output.loss_sum for output in outputs).backward()
    assert sum(output.weight.item() for output in outputs) == 3 + 2 + 2
    assert sum(output.loss_sum.item() for output in outputs) == pytest.approx(loss.item(), rel=1e-5)
    assert sum(o.metrics["divergence"].item() for o in outputs) == pytest.approx(divergence.item(), rel=1e-5)
    assert sum(o.metrics["cross_entropy"].item() for o in outputs) == pytest.approx(labels.item(), rel=1e-5)
    for name, parameter in student.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_evaluation_counts_what_is_right_and_what_agrees(models) -> None:
    student, teacher = models(True)
    with torch.no_grad():
        output = Distillation(SETTINGS, teacher)(
            student.eval(), collate(rows(), np.arange(3), padding_free=True, pad_token_id=0)
        )
        right = agree = 0
        for ids, first in ROWS:
            mine, theirs = (m.eval()(torch.tensor([ids])).logits[0, first - 1 : -1].argmax(-1) for m in models())
            right += int((mine == torch.tensor(ids[first:])).sum())
            agree += int((mine == theirs).sum())
    assert output.metrics["token_accuracy"].item() == right
    assert output.metrics["teacher_agreement"].item() == agree


@pytest.mark.parametrize("few", [True, False])
def test_the_likeliest_tokens_stand_for_the_teacher(models, tmp_path: Path, few: bool) -> None:
    """With all tokens but one it is the same divergence; with few, that over these tokens and one for the rest."""
    student, teacher = models(True)
    teacher.resize_token_embeddings(student.config.vocab_size)
    alone = models()
    alone[1].resize_token_embeddings(student.config.vocab_size)
    plain, chosen, kept = rows(), [], []
    count = 4 if few else student.config.vocab_size - 1
    for ids, first in ROWS:
        log_p = (alone[1](torch.tensor([ids])).logits[0, first - 1 : -1] / TEMPERATURE).log_softmax(-1).topk(count)
        chosen.append(log_p.indices.int().numpy())
        kept.append(log_p.values.numpy())
    Teaching.create(tmp_path / "t", plain.label_tokens, count)
    Teaching.write(tmp_path / "t", 0, np.concatenate(chosen[:2]), np.concatenate(kept[:2]))
    Teaching.write(tmp_path / "t", 5, chosen[2], kept[2])
    taught = TokenRows(plain.parts, teaching=Teaching.open(tmp_path / "t", plain.labels_per_row))
    expected = 0.0
    for number, (ids, first) in enumerate(ROWS):
        log_q = (alone[0](torch.tensor([ids])).logits[0, first - 1 : -1].double() / TEMPERATURE).log_softmax(-1)
        q, p = (
            log_q.gather(1, torch.from_numpy(chosen[number]).long()).exp(),
            torch.from_numpy(kept[number]).double().exp(),
        )
        q, p = (torch.cat([some, 1 - some.sum(-1, keepdim=True)], -1) for some in (q, p))
        expected += (p * (p / q).log()).sum().item()
    objective = Distillation(SETTINGS)
    order = np.array([2, 0, 1])
    output = objective(student, collate(taught, order, padding_free=True, pad_token_id=0))
    assert output.metrics["divergence"].item() == pytest.approx(expected, rel=1e-4)
    if not few:
        whole = Distillation(SETTINGS, teacher)(student, collate(plain, order, padding_free=True, pad_token_id=0))
        assert output.metrics["divergence"].item() == pytest.approx(whole.metrics["divergence"].item(), rel=1e-3)
    filler = objective(student, collate(taught, np.arange(0), padding_free=True, pad_token_id=0))
    assert (filler.loss_sum.item(), filler.weight.item()) == (0.0, 0.0)
