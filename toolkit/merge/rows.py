"""Rows of a run's training data, to compare models on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from toolkit.config import RunConfig
from toolkit.data.prepare import prepare
from toolkit.data.shapes import SHAPES
from toolkit.errors import UserError

_ROWS = 8
_READ = 64
_TEXTS = (
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "Question: how many days are there in a week? Answer: there are seven of them.",
    "def add(a, b):\n    return a + b\n",
    "Det var en gang en liten by ved havet, der alle kjente alle. 1, 2, 3, 4.",
)


def rows_to_compare(
    config: RunConfig | None, tokenizer: PreTrainedTokenizerBase, say: Callable[[str], None]
) -> list[list[int]]:
    """Token ids of some of the first training rows; of a few sentences, where the data is not there any more, and says so."""
    reason = "there is no config.yaml of a run"
    if config is not None and config.data.train is not None:
        try:
            return _training_rows(config, tokenizer)
        except UserError as error:
            reason = str(error)
    say(f"no training rows to compare on ({reason}); compared on {len(_TEXTS)} sentences instead")
    return [list(tokenizer(text).input_ids) for text in _TEXTS]


def _training_rows(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    with tempfile.TemporaryDirectory() as cache:  # that of the user keeps whole data sets
        few = replace(config.data, max_rows=_READ, eval=None, eval_fraction=0.0, num_proc=1, cache_dir=cache)
        data = prepare(
            few, tokenizer, seed=config.seed, prompts=0, note=lambda message: None, accepted=tuple(SHAPES), max_steps=1
        )
        step = max(1, len(data.train) // _ROWS)
        return [data.train.ids(row).tolist() for row in range(0, len(data.train), step)][:_ROWS]
