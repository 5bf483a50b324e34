"""Sizes of training that are given in tokens, as those of rows and steps that the rest of a run knows."""

from __future__ import annotations

from toolkit.config import RunConfig
from toolkit.errors import UserError
from toolkit.recipe_config import PretrainConfig

# What is given in tokens, and what it takes the place of.
_IN_PLACE_OF = {
    "global_batch_tokens": ("train.global_batch_size",),
    "max_tokens": ("train.max_steps", "train.epochs"),
    "warmup_tokens": ("train.warmup_steps", "train.warmup_ratio"),
}


def in_rows_and_steps(config: RunConfig, wanted: PretrainConfig) -> list[str]:
    """Set train.global_batch_size, train.max_steps and train.warmup_steps from the numbers of tokens in `wanted`.

    A row is a block of data.max_length tokens. Returns what was derived, in words. Raises UserError for a batch that is not
    a whole number of blocks, or for two keys that say the same thing.
    """
    for key, others in _IN_PLACE_OF.items():
        for other in others:
            if getattr(wanted, key) is not None and other in config.given:
                raise UserError(
                    f"pretrain.{key} ({config.given.get(f'pretrain.{key}', 'default')}) and {other} ({config.given[other]}) "
                    "both say how long; keep one"
                )
    train, block, said = config.train, config.data.max_length, []
    if wanted.global_batch_tokens is not None:
        if wanted.global_batch_tokens % block:
            near = max(1, round(wanted.global_batch_tokens / block)) * block
            raise UserError(
                f"pretrain.global_batch_tokens: {wanted.global_batch_tokens:,} is not a whole number of blocks of "
                f"data.max_length {block:,} tokens; the nearest is {near:,}"
            )
        train.global_batch_size = wanted.global_batch_tokens // block
        said.append(f"global batch: {train.global_batch_size:,} blocks of {block:,} tokens")
    step = train.global_batch_size * block
    if wanted.max_tokens is not None:
        train.max_steps = -(-wanted.max_tokens // step)
        said.append(f"steps: {train.max_steps:,} of up to {step:,} tokens, for {wanted.max_tokens:,} tokens")
    if wanted.warmup_tokens is not None:
        train.warmup_steps = -(-wanted.warmup_tokens // step)
        said.append(f"warm-up: {train.warmup_steps:,} steps, for {wanted.warmup_tokens:,} tokens")
    return said
