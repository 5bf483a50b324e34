"""Tokens that a recipe adds to a tokenizer, and their rows in the embeddings of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AddedToken, PreTrainedModel, PreTrainedTokenizerBase

from toolkit.config import ModelConfig
from toolkit.errors import UserError


def add_tokens(tokenizer: PreTrainedTokenizerBase, config: ModelConfig) -> None:
    """Add `model.new_tokens` and `model.new_special_tokens`. Those that are there already are left as they are."""
    both = set(config.new_tokens) & set(config.new_special_tokens)
    if both:
        raise UserError(f"model.new_tokens and model.new_special_tokens both name {min(both)!r}; keep one")
    if any(not token.strip() for token in config.added_tokens):
        raise UserError("model.new_tokens: a token must have a character that can be seen")
    known = tokenizer.get_vocab()
    for tokens, special in ((config.new_tokens, False), (config.new_special_tokens, True)):
        missing = [AddedToken(token, special=special, normalized=False) for token in tokens if token not in known]
        tokenizer.add_tokens(missing, special_tokens=special)


@torch.no_grad()
def give_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: ModelConfig, say: Callable[[str], None]
) -> None:
    """Let the embeddings, and the head, have a row for each token that `config` adds; new rows begin as the mean of all.

    The mean makes a new token as likely as the others are on average, where a random row could be any
    (https://nlp.stanford.edu/~johnhew/vocab-expansion.html). It is summed in fp64, so that it does not depend on threads.
    """
    if not config.added_tokens:
        return
    vocabulary = tokenizer.get_vocab()
    ids = sorted(vocabulary[token] for token in config.added_tokens)
    before = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[union-attr, index]
    new = [index for index in ids if index >= before]
    if not new:
        return
    if model.config.get_text_config().vocab_size != before:
        raise UserError(
            f"model.new_tokens: the embeddings have {before} rows and the config of the model says "
            f"{model.config.get_text_config().vocab_size}; such a model cannot be given more"
        )
    model.resize_token_embeddings(max(ids) + 1, mean_resizing=False)
    fill_rows([model.get_input_embeddings(), model.get_output_embeddings()], before)
    say(
        f"model: {len(new)} new tokens ({', '.join(config.added_tokens)}): {before} -> {max(ids) + 1} embedding rows, the new "
        "ones begin as the mean of the others"
    )


@torch.no_grad()
def fill_rows(modules: list[Any], before: int) -> None:
    """The mean of the first `before` rows in all that come after, in weight and bias of embeddings and head."""
    filled = set()
    for module in modules:
        for values in (getattr(module, "weight", None), getattr(module, "bias", None)):
            if values is not None and values.shape[0] > before and values.data_ptr() not in filled:
                values[before:] = values[:before].mean(dim=0, dtype=torch.float64).to(values.dtype)
                filled.add(values.data_ptr())
