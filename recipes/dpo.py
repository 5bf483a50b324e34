"""Preference learning: a chat model learns which of two answers is the better one (DPO and its relatives).

    accelerate launch recipes/dpo.py                                               # embedded demo: small model, small data
    accelerate launch --config_file accelerate_configs/fsdp2.yaml recipes/dpo.py --config my.yaml

Rows have `chosen` and `rejected`, and their `prompt` or the messages they share. `objective.loss` chooses the loss; sigmoid,
the default, is DPO. What is compared with is the model as it starts. Every key: --help.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from toolkit.config import RunConfig, option
from toolkit.errors import UserError, exit_with_message
from toolkit.parsing import parse
from toolkit.recipe_config import PreferenceConfig

DEMO = Path(__file__).parent / "configs" / "dpo" / "demo.yaml"


@dataclass
class DPOConfig(RunConfig):
    """Preference learning."""

    objective: PreferenceConfig = field(default_factory=PreferenceConfig)
    output_dir: str = option(
        "outputs/dpo", "folder of the run: metrics, config, checkpoints and the finished model", path=True, alters=False
    )


def main() -> None:
    """Configuration, data, model, training; each step fails before the costly one after it."""
    config = parse(DPOConfig, demo=DEMO)
    wanted = config.objective
    if wanted.label_smoothing and wanted.loss != "robust":
        raise UserError(f"objective.label_smoothing: means nothing for objective.loss: {wanted.loss}; use robust")
    if config.train.label_smoothing_factor:
        raise UserError("train.label_smoothing_factor: means nothing for pairs; objective.loss: robust has its own")

    # Torch and transformers take seconds to import; a typo in a config should not have to wait for them.
    from toolkit.data.shapes import PREFERENCES
    from toolkit.models import load_tokenizer
    from toolkit.objectives.preference import Preference
    from toolkit.objectives.preference_losses import LossSettings
    from toolkit.reference import with_reference
    from toolkit.run import fine_tune
    from toolkit.stages import begin, data_of, leave, model_of

    objective = Preference(
        wanted.loss, LossSettings(wanted.beta, wanted.label_smoothing, wanted.gamma, wanted.nll_weight)
    )
    if objective.reference and config.data.streaming:
        raise UserError("data.streaming: the reference looks at all pairs before the first step; set it to false")
    run = begin(config)
    if run is None:
        return
    tokenizer = load_tokenizer(config.model)
    data = data_of(run, tokenizer, accepted=PREFERENCES)
    model = model_of(run, tokenizer)
    annotate = partial(with_reference, run, data=data.fingerprint) if objective.reference else None
    evaluations = fine_tune(run, model, tokenizer, data, objective, annotate)
    leave(run, model, tokenizer, data, evaluations)


if __name__ == "__main__":
    exit_with_message(main)
