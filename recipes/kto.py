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

from toolkit.config import KTOConfig, RunConfig, option
from toolkit.errors import UserError, exit_with_message
from toolkit.parsing import parse

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
    if config.train.label_smoothing_factor:
        raise UserError("train.label_smoothing_factor: means nothing for judged answers; set it to 0")

    # Torch and transformers take seconds to import; a typo in a config should not have to wait for them.
    from toolkit.build import build_model
    from toolkit.card.gather import gather
    from toolkit.card.write import write_card
    from toolkit.data.prepare import prepare
    from toolkit.data.shapes import JUDGEMENTS
    from toolkit.models import load_tokenizer
    from toolkit.monitor.preparation import PreparationProgress
    from toolkit.monitor.summary import report
    from toolkit.objectives.kto import KTO, KTOSettings, balance
    from toolkit.parallel.loading import distributed_config
    from toolkit.publish import publish
    from toolkit.reference import with_mismatched
    from toolkit.run import fine_tune
    from toolkit.start import start

    run = start(config)
    if run.finished:
        run.say(f"{run.folder.path} is complete already, there is nothing to do")
        return
    tokenizer = load_tokenizer(config.model)
    with PreparationProgress(active=run.layout.is_main) as progress:
        data = prepare(
            config.data,
            tokenizer,
            seed=config.seed,
            prompts=0,
            note=run.say,
            progress=progress,
            accepted=JUDGEMENTS,
            max_steps=config.train.max_steps,
        )
    settings = KTOSettings(wanted.beta, wanted.desirable_weight, wanted.undesirable_weight)
    run.say(balance(data.train.values, settings))
    build = partial(build_model, config, tokenizer, mixed_precision=run.layout.mixed_precision, say=run.say)
    model = build(sharded=distributed_config(run.layout.choices))
    annotate = partial(with_mismatched, run, data=data.fingerprint)
    evaluations = fine_tune(run, model, tokenizer, data, KTO(settings), annotate)
    if run.layout.is_main:
        write_card(run.folder, gather(run, model, tokenizer, data, evaluations, [], []))
        report(run.folder, evaluations, [], [])
    publish(run)


if __name__ == "__main__":
    exit_with_message(main)
