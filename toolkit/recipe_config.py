"""Sections that single recipes add to the configuration of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from toolkit.config import RunConfig, option


@dataclass
class PretrainConfig:
    """How documents are laid into rows, and lengths of training counted in tokens. docs/pretraining.md."""

    packing: Literal["across", "whole"] = option(
        "across",
        "across: documents end to end, cut every data.max_length tokens; whole: a block holds whole documents, only longer "
        "ones are cut",
    )
    document_mask: bool = option(True, "documents in one block do not see each other")
    global_batch_tokens: int | None = option(
        None, "tokens of one optimizer step, in place of train.global_batch_size", minimum=1
    )
    max_tokens: int | None = option(None, "tokens to train on, in place of train.epochs and train.max_steps", minimum=1)
    warmup_tokens: int | None = option(None, "tokens of warm-up, in place of train.warmup_steps", minimum=0)


@dataclass
class PreferenceConfig:
    """What is learned from pairs of answers. docs/preference.md has the formulas."""

    loss: Literal["sigmoid", "hinge", "ipo", "robust", "orpo", "simpo", "cpo"] = option(
        "sigmoid",
        "sigmoid (DPO), hinge, ipo and robust compare with the model as it starts; orpo, simpo and cpo do not",
    )
    beta: float = option(0.1, "how strongly the margin between the answers counts", above=0)
    label_smoothing: float = option(
        0.0, "robust: the share of pairs that are the wrong way round", minimum=0.0, below=0.5
    )
    gamma: float = option(0.5, "simpo: the margin that is asked for")
    nll_weight: float = option(1.0, "orpo, cpo: weight of the better answer's own cross-entropy", minimum=0.0)


@dataclass
class KTOConfig:
    """What is learned from answers that are judged one by one. docs/kto.md has the formula."""

    beta: float = option(0.1, "how strongly an answer's reward counts", above=0)
    desirable_weight: float = option(1.0, "weight of desirable answers", minimum=0.0)
    undesirable_weight: float = option(1.0, "weight of the others", minimum=0.0)


@dataclass
class DistillationConfig:
    """What a student learns from its teacher. docs/distillation.md has the formulas."""

    divergence: Literal["forward_kl", "reverse_kl", "jsd"] = option(
        "forward_kl", "between the teacher's distribution of a token and the student's"
    )
    temperature: float = option(1.0, "both distributions are softmax(logits / temperature)", above=0)
    weight: float = option(
        0.5, "share of the divergence in the loss; the rest is the cross-entropy of the labels", minimum=0.0
    )
    beta: float = option(0.5, "jsd: the teacher's share in the mean of both", above=0, below=1.0)
    top_k: int | None = option(
        None,
        "ask the teacher once, before the first step, for this many likeliest tokens of each label, and keep them; default: "
        "the teacher works beside the student in every step",
        minimum=1,
    )


@dataclass
class AnyRunConfig(RunConfig):
    """The configuration of any recipe, for what only looks at its model and its data."""

    objective: dict[str, Any] | None = option(None, "a section of some recipes; not looked at")
    pretrain: dict[str, Any] | None = option(None, "a section of recipes/pretrain.py; not looked at")
    teacher: dict[str, Any] | None = option(None, "a section of recipes/distill.py; not looked at")
