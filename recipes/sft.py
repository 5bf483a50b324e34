"""Supervised fine-tuning: a chat or text model learns to give the answers in your data.

    accelerate launch recipes/sft.py                                               # embedded demo: small model, small data
    accelerate launch recipes/sft.py --config recipes/configs/sft/smollm2_faq.yaml  # a real model
    accelerate launch --config_file accelerate_configs/fsdp2.yaml recipes/sft.py --config my.yaml

Rows are `messages`, `prompt` + `completion`, or `text`. The loss is on assistant turns (the completion, the whole text),
with the token that ends the turn. Every key: --help. The result, OUTPUT_DIR/model, is a plain Hugging Face folder.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    from toolkit.models import load_tokenizer
    from toolkit.objectives.causal_lm import CausalLanguageModeling
    from toolkit.run import fine_tune
    from toolkit.stages import answers_of, begin, data_of, finished_answers_of, leave, model_of

    run = begin(config)
    if run is None:
        return
    tokenizer = load_tokenizer(config.model)
    data = data_of(run, tokenizer, prompts=config.generate_rows)

    model = model_of(run, tokenizer, whole=True)
    before = answers_of(run, model, tokenizer, data)
    if run.layout.choices.sharded_loading:
        model = model_of(run, tokenizer)
    objective = CausalLanguageModeling(label_smoothing=config.train.label_smoothing_factor)
    evaluations = fine_tune(run, model, tokenizer, data, objective)
    after = finished_answers_of(run, tokenizer, data)
    leave(run, model, tokenizer, data, evaluations, before, after)


if __name__ == "__main__":
    exit_with_message(main)
