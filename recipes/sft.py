"""Supervised fine-tuning: a chat or text model learns to give the answers in your data.

    accelerate launch recipes/sft.py                                               # embedded demo: small model, small data
    accelerate launch recipes/sft.py --config recipes/configs/sft/smollm2_faq.yaml  # a real model
    accelerate launch --config_file accelerate_configs/fsdp2.yaml recipes/sft.py --config my.yaml

Rows are `messages`, `prompt` + `completion`, or `text`. The loss is on assistant turns (the completion, the whole text),
with the token that ends the turn. Every key: --help. The result, OUTPUT_DIR/model, is a plain Hugging Face folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from toolkit.config import RunConfig, option
from toolkit.errors import exit_with_message
from toolkit.parsing import parse

DEMO = Path(__file__).parent / "configs" / "sft" / "demo.yaml"


@dataclass
class SFTConfig(RunConfig):
    """Supervised fine-tuning."""

    output_dir: str = option(
        "outputs/sft", "folder of the run: metrics, config, checkpoints and the finished model", path=True, alters=False
    )


def main() -> None:
    """Configuration, data, model, training, answers; each step fails before the costly one after it."""
    config = parse(SFTConfig, demo=DEMO)

    # Torch and transformers take seconds to import; a typo in a config should not have to wait for them.
    from toolkit.build import build_model
    from toolkit.card.gather import gather
    from toolkit.card.write import write_card
    from toolkit.data.prepare import prepare
    from toolkit.evaluation import answer
    from toolkit.finished import load_finished
    from toolkit.models import load_tokenizer
    from toolkit.monitor.preparation import PreparationProgress
    from toolkit.monitor.summary import report
    from toolkit.objectives.causal_lm import CausalLanguageModeling
    from toolkit.parallel.loading import distributed_config
    from toolkit.publish import publish
    from toolkit.run import fine_tune
    from toolkit.start import start

    # What can be wrong is found here, before any weight is loaded.
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
            prompts=config.generate_rows,
            note=run.say,
            progress=progress,
            max_steps=config.train.max_steps,
        )

    build = partial(build_model, config, tokenizer, mixed_precision=run.layout.mixed_precision, say=run.say)
    model, tokens = build(), config.generate_max_tokens
    before = answer(run.layout, model, tokenizer, data.prompts, max_new_tokens=tokens, beat=run.beat)
    if (mesh := distributed_config(run.layout.choices)) is not None:
        model = build(sharded=mesh)
    objective = CausalLanguageModeling(label_smoothing=config.train.label_smoothing_factor)
    evaluations = fine_tune(run, model, tokenizer, data, objective)

    after = []
    if data.prompts:
        # Answers come from the folder that the run leaves, as a user would load it.
        finished, _ = load_finished(run.folder.model)
        after = answer(run.layout, finished, tokenizer, data.prompts, max_new_tokens=tokens, beat=run.beat)
    if run.layout.is_main:
        write_card(run.folder, gather(run, model, tokenizer, data, evaluations, before, after))
        report(run.folder, evaluations, before, after)
    publish(run)


if __name__ == "__main__":
    exit_with_message(main)
