"""Pretraining on raw text, from a model's weights (continued pretraining) or from random ones.

    accelerate launch recipes/pretrain.py                                          # embedded demo: small model, small data
    accelerate launch --config_file accelerate_configs/fsdp2.yaml recipes/pretrain.py --config my.yaml

Rows are `text`, or lines, paragraphs or whole files of .txt (data.sample_by). Each is a document, which ends with the
tokenizer's end token. Documents are laid into blocks of data.max_length tokens, and a block is a row of the batch; the section
`pretrain` says how, and gives the length of training in tokens. Every key: --help.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from toolkit.config import RunConfig, option
from toolkit.errors import UserError, exit_with_message
from toolkit.parsing import parse
from toolkit.recipe_config import PretrainConfig
from toolkit.token_units import in_rows_and_steps

DEMO = Path(__file__).parent / "configs" / "pretrain" / "demo.yaml"
UNCUT = 2**31 - 1


@dataclass
class PretrainingConfig(RunConfig):
    """Pretraining on raw text."""

    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    output_dir: str = option(
        "outputs/pretrain",
        "folder of the run: metrics, config, checkpoints and the finished model",
        path=True,
        alters=False,
    )


def main() -> None:
    """Configuration, documents, blocks, model, training; each step fails before the costly one after it."""
    config = parse(PretrainingConfig, demo=DEMO)
    wanted, block = config.pretrain, config.data.max_length
    derived = in_rows_and_steps(config, wanted)
    if wanted.packing == "across" and "data.overlength" in config.given:
        raise UserError("data.overlength: means nothing with pretrain.packing: across, where no document is too long")
    if config.data.streaming:
        raise UserError("data.streaming: documents are laid into blocks before the first step; set it to false")

    # Torch and transformers take seconds to import; a typo in a config should not have to wait for them.
    from toolkit.data.packed import pack
    from toolkit.data.shapes import TEXTS
    from toolkit.models import load_tokenizer
    from toolkit.objectives.causal_lm import CausalLanguageModeling
    from toolkit.run import fine_tune
    from toolkit.stages import begin, data_of, leave, model_of

    run = begin(config)
    if run is None:
        return
    for line in derived:
        run.say(line)
    tokenizer = load_tokenizer(config.model)
    # Across blocks no document is too long; of whole ones, what is longer than a block is cut where that is full.
    documents = replace(config.data, max_length=UNCUT) if wanted.packing == "across" else config.data
    if "data.overlength" not in config.given:
        documents = replace(documents, overlength="split")
    blocks = partial(
        pack, size=block, how=wanted.packing, isolated=wanted.document_mask, seed=config.seed, note=run.say
    )
    data = data_of(run, tokenizer, accepted=TEXTS, pack=blocks, config=documents)
    model = model_of(run, tokenizer)
    objective = CausalLanguageModeling(label_smoothing=config.train.label_smoothing_factor)
    evaluations = fine_tune(run, model, tokenizer, data, objective)
    leave(run, model, tokenizer, data, evaluations)


if __name__ == "__main__":
    exit_with_message(main)
