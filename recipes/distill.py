"""Distillation: a small model, the student, learns from a larger one, its teacher, what it thinks of every token.

    accelerate launch recipes/distill.py                                           # embedded demo: small model, small data
    accelerate launch --config_file accelerate_configs/ddp.yaml recipes/distill.py --config my.yaml

The section `model` is the student, `teacher` the teacher; both must have the same vocabulary. Rows are those of sft.py: what
is labelled there is what the teacher is asked about. `objective.top_k` asks it once and lets go of it. Every key: --help.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from toolkit.config import ModelConfig, RunConfig, option
from toolkit.errors import UserError, exit_with_message
from toolkit.parsing import parse
from toolkit.recipe_config import DistillationConfig

DEMO = Path(__file__).parent / "configs" / "distill" / "demo.yaml"


@dataclass
class DistillConfig(RunConfig):
    """Distillation of a teacher into a student."""

    teacher: ModelConfig = field(default_factory=ModelConfig)
    objective: DistillationConfig = field(default_factory=DistillationConfig)
    output_dir: str = option(
        "outputs/distill",
        "folder of the run: metrics, config, checkpoints and the finished model",
        path=True,
        alters=False,
    )


def main() -> None:
    """Configuration, data, student, teacher, training, answers; each step fails before the costly one after it."""
    config = parse(DistillConfig, demo=DEMO)
    wanted = config.objective
    if wanted.weight > 1:
        raise UserError(f"objective.weight: a share, from 0 to 1; got {wanted.weight:g}")
    if config.train.label_smoothing_factor:
        raise UserError("train.label_smoothing_factor: the teacher says how targets are spread; set it to 0")
    if wanted.top_k is not None and config.data.streaming:
        raise UserError("data.streaming: objective.top_k asks about all rows before the first step; keep one")

    # Torch and transformers take seconds to import; a typo in a config should not have to wait for them.
    from toolkit.models import load_tokenizer
    from toolkit.objectives.distillation import Distillation, DistillationSettings
    from toolkit.run import fine_tune
    from toolkit.stages import answers_of, begin, data_of, finished_answers_of, leave, model_of
    from toolkit.teacher import check_teacher, load_teacher, with_teaching

    check_teacher(config.teacher)
    run = begin(config)
    if run is None:
        return
    tokenizer = load_tokenizer(config.model)
    data = data_of(run, tokenizer, prompts=config.generate_rows)
    teacher = load_teacher(run, config.teacher, tokenizer)
    model = model_of(run, tokenizer, whole=True)
    before = answers_of(run, model, tokenizer, data)
    if run.layout.choices.sharded_loading:
        model = model_of(run, tokenizer)
    settings = DistillationSettings(wanted.divergence, wanted.temperature, wanted.weight, wanted.beta)
    objective, annotate = Distillation(settings, teacher), None
    if wanted.top_k is not None:
        objective = Distillation(settings)
        annotate = partial(
            with_teaching, run, teacher, data=data.fingerprint, count=wanted.top_k, temperature=wanted.temperature
        )
        del teacher
    evaluations = fine_tune(run, model, tokenizer, data, objective, annotate)
    after = finished_answers_of(run, tokenizer, data)
    leave(run, model, tokenizer, data, evaluations, before, after)


if __name__ == "__main__":
    exit_with_message(main)
