"""Tokenize the data of a config ahead, on a machine without accelerators; runs with the same config then find it done.

    toolkit prepare --config my.yaml [--data.num_proc 32 ...]

Takes the keys of a recipe's config. Loads no model weights.
"""

from __future__ import annotations

import argparse

from toolkit.errors import UserError
from toolkit.parsing import parse
from toolkit.recipe_config import AnyRunConfig

HELP = "tokenize the data of a config ahead, without an accelerator"
TAKES_CONFIG = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None of its own: what follows the verb is a recipe's configuration."""
    parser.usage = "toolkit prepare --config FILE [--section.key VALUE ...]"
    parser.allow_abbrev = False


def run(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Prepare and say where the result lies."""
    config = parse(AnyRunConfig, rest)

    from toolkit.data.cache import cache_folder
    from toolkit.data.prepare import prepare
    from toolkit.data.shapes import SHAPES
    from toolkit.models import load_tokenizer
    from toolkit.monitor.banner import note
    from toolkit.monitor.preparation import PreparationProgress

    if config.data.streaming:
        raise UserError("data.streaming: rows are tokenized while training; there is nothing to prepare")
    tokenizer = load_tokenizer(config.model)
    with PreparationProgress() as progress:
        data = prepare(
            config.data, tokenizer, seed=config.seed, prompts=0, note=note, progress=progress, accepted=tuple(SHAPES)
        )
    note(
        f"prepared: {len(data.train):,} rows, {data.train.tokens:,} tokens, {data.train.label_tokens:,} of them labelled"
    )
    note(f"cache: {cache_folder(config.data.cache_dir)}")
