"""The losses with a reference against TRL's trainer, on the tokens and the mask that it makes of the same pairs; those without
one against the functions of its trainers, on the same log-probabilities."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from toolkit.attention import ISOLATED
from toolkit.data.collate import collate
from toolkit.data.fit import Piece
from toolkit.data.pairs import join
from toolkit.data.tokens import TokenRows
from toolkit.objectives.log_probs import answer_log_probs
from toolkit.objectives.preference import Preference
from toolkit.objectives.preference_losses import LOSSES, Answers, LossSettings

trl = pytest.importorskip("trl", reason="compares with TRL's losses")

TEXTS = [
    ("the question of the user", "the answer is in the system", "an assistant"),
    ("is the user in", "of", "the user is in the question and the answer"),
    ("and", "system system", "user user user"),
]


@pytest.mark.parametrize("loss", ["sigmoid", "hinge", "ipo", "robust"])
def test_the_same_loss_on_the_same_batch(tiny_model: Path, tmp_path: Path, loss: str) -> None:
    from datasets import Dataset

    said = [("user", "assistant", "assistant")] * len(TEXTS)
    names = ("prompt", "chosen", "rejected")
    rows = [
        {name: [{"role": role, "content": text}] for name, role, text in zip(names, roles, texts, strict=True)}
        for roles, texts in zip(said, TEXTS, strict=True)
    ]
    reference = AutoModelForCausalLM.from_pretrained(tiny_model)
    policy = AutoModelForCausalLM.from_pretrained(tiny_model)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    smoothing = 0.1 if loss == "robust" else 0.0
    arguments = trl.DPOConfig(
        output_dir=str(tmp_path), loss_type=[loss], beta=0.3, label_smoothing=smoothing, per_device_train_batch_size=3,
        report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    trainer = trl.DPOTrainer(
        model=policy,
        ref_model=reference,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(tiny_model),
    )
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        wanted = trainer.compute_loss(trainer.model.eval(), dict(batch)).item()

    kept = batch["attention_mask"].bool()
    sides = [
        Piece(ids[mask].numpy().astype(np.int32), learnt[mask].bool().numpy())
        for ids, mask, learnt in zip(batch["input_ids"], kept, batch["completion_mask"], strict=True)
    ]
    joined = [join(*pair) for pair in zip(sides[:3], sides[3:], strict=True)]
    built = TokenRows.build(
        [(p.input_ids, np.where(p.supervised, p.input_ids, -100)) for p in joined], [p.branches for p in joined]
    )
    models = []
    for model in (reference, policy):
        model.set_attn_implementation(ISOLATED)
        models.append(model.eval())
    with torch.no_grad():
        known, _ = answer_log_probs(models[0], collate(built, np.arange(3), padding_free=True, pad_token_id=0))
        rows_known = TokenRows(built.parts, known.view(-1, 2).numpy())
        together = collate(rows_known, np.arange(3), padding_free=True, pad_token_id=0)
        output = Preference(loss, LossSettings(beta=0.3, label_smoothing=smoothing))(models[1], together)
    assert wanted != pytest.approx(0.6931, abs=1e-3)
    assert (output.loss_sum / output.weight).item() == pytest.approx(wanted, rel=1e-4)


SUMS = torch.tensor([[-9.0, -14.5], [-30.25, -2.0], [-4.0, -4.5]])
TOKENS = torch.tensor([[6.0, 9.0], [11.0, 3.0], [2.0, 5.0]])


def ours(loss: str, settings: LossSettings) -> torch.Tensor:
    return LOSSES[loss].function(*(Answers(SUMS[:, side], TOKENS[:, side]) for side in (0, 1)), settings)


@pytest.mark.filterwarnings("ignore")
def test_orpo_simpo_and_cpo() -> None:
    from trl.experimental.cpo.cpo_trainer import CPOTrainer
    from trl.experimental.orpo.orpo_trainer import ORPOTrainer

    own = SimpleNamespace(
        beta=0.3, simpo_gamma=0.7, alpha=0.0, label_smoothing=0.0, accelerator=SimpleNamespace(device="cpu")
    )
    means = SUMS / TOKENS
    odds, *_ = ORPOTrainer.odds_ratio_loss(own, means[:, 0], means[:, 1])
    # Their trainer subtracts this from the cross-entropy of the better answer, which it takes per token of the batch.
    torch.testing.assert_close(ours("orpo", LossSettings(beta=0.3, nll_weight=0.0)), -odds)
    own.loss_type = "simpo"
    simpo, *_ = CPOTrainer.cpo_loss(own, means[:, 0], means[:, 1])
    torch.testing.assert_close(ours("simpo", LossSettings(beta=0.3, gamma=0.7)), simpo)
    own.loss_type = "sigmoid"
    cpo, *_ = CPOTrainer.cpo_loss(own, SUMS[:, 0], SUMS[:, 1])
    torch.testing.assert_close(ours("cpo", LossSettings(beta=0.3, nll_weight=0.0)), cpo)
