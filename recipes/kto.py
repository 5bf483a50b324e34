"""KTO: a chat model learns from answers that are judged one by one, desirable or not; no pairs are needed.

    accelerate launch recipes/kto.py                                               # embedded demo: small model, small data
    accelerate launch --config_file accelerate_configs/fsdp2.yaml recipes/kto.py --config my.yaml

Rows have `prompt`, `completion` and `label`, true for a desirable answer. What is compared with is the model as it starts.
Every key: --help.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from toolkit.config import RunConfig, option
from toolkit.errors import UserError, exit_with_message
from toolkit.parsing import parse
from toolkit.recipe_config import KTOConfig

DEMO = Path(__file__).parent / "configs" / "kto" / "demo.yaml"


@dataclass
class JudgementConfig(RunConfig):
    """Learning from judged answers."""

    objective: KTOConfig = field(default_factory=KTOConfig)
    output_dir: str = option(
        "outputs/kto", "folder of the run: metrics, config, checkpoints and the finished model", path=True, alters=False
    )


def main() -> None:
    """Configuration, data, model, training; each step fails before the costly one after it."""
    config = parse(JudgementConfig, demo=DEMO)
    wanted = config.objective
    if config.data.streaming:
        raise UserError("data.streaming: the reference looks at all answers before the first step; set it to false")
    if config.train.label_smoothing_factor:
        raise UserError("train.label_smoothing_factor: means nothing for judged answers; set it to 0")

    # Torch and transformers take seconds to import; a typo in a config should not have to wait for them.
    from toolkit.data.shapes import JUDGEMENTS
    from toolkit.models import load_tokenizer
    from toolkit.objectives.kto import KTO, KTOSettings, balance
    from toolkit.reference import with_mismatched
    from toolkit.run import fine_tune
    from toolkit.stages import begin, data_of, leave, model_of

    run = begin(config)
    if run is None:
        return
    tokenizer = load_tokenizer(config.model)
    data = data_of(run, tokenizer, accepted=JUDGEMENTS)
    settings = KTOSettings(wanted.beta, wanted.desirable_weight, wanted.undesirable_weight)
    run.say(balance(data.train.values, settings))
    model = model_of(run, tokenizer)
    annotate = partial(with_mismatched, run, data=data.fingerprint)
    evaluations = fine_tune(run, model, tokenizer, data, KTO(settings), annotate)
    leave(run, model, tokenizer, data, evaluations)


if __name__ == "__main__":
    exit_with_message(main)
