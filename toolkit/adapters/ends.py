"""Embeddings and head of a model under an adapter: tied or not, single rows of them, and what may lie on the head."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.adapters.methods import Method
from toolkit.adapters.targets import saves, targets
from toolkit.config import AdapterConfig, ModelConfig
from toolkit.errors import UserError


def tied_options(
    model: PreTrainedModel, config: AdapterConfig, method: Method, *, rows_trained: bool = False
) -> dict[str, Any]:
    """peft's options for a model whose embeddings and head are one matrix. Raises UserError where that needs a choice, or the
    choice cannot be carried out."""
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not getattr(model.config.get_text_config(), "tie_word_embeddings", False) or head is None:
        if config.tied_embeddings is not None:
            raise UserError(
                "adapter.tied_embeddings: the embeddings and the head of this model are not tied; remove it"
            )
        return {}
    adapted = [one for one in (embeddings, head) if targets(model, config, one)]
    saved = [one for one in (embeddings, head) if saves(model, config, one)]
    if not adapted and not saved:
        kept = rows_trained and config.tied_embeddings == "keep"  # rows of one matrix: that is what happens
        if config.tied_embeddings is not None and not kept:
            raise UserError("adapter.tied_embeddings: neither embeddings nor head are trained; remove it")
        return {}
    if config.tied_embeddings is None:
        raise UserError(
            "adapter: embeddings and head of this model are one matrix, and an adapter would train a copy of it in one place "
            "only; choose adapter.tied_embeddings: keep (train one matrix, modules_to_save: [embed_tokens]) or untie (two "
            "matrices from now on, the merged model is larger)"
        )
    if config.tied_embeddings == "untie":
        model.config.get_text_config().tie_word_embeddings = False
        return {}
    if adapted or not method.tokens:
        raise UserError(
            f"adapter.tied_embeddings: keep needs a LoRA method and the matrix in adapter.modules_to_save, not in "
            f"target_modules (method {config.method}); or choose untie"
        )
    return {"ensure_weight_tying": True}


def token_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: AdapterConfig, of: ModelConfig, method: Method
) -> dict[str, list[int]]:
    """Rows of embeddings and head to train, by the name of the module. Raises UserError for tokens that are not there, and rows
    that would stay as they were made."""
    tokens = list(dict.fromkeys([*of.added_tokens, *config.trainable_tokens]))
    if not tokens:
        return {}
    vocabulary = tokenizer.get_vocab()
    unknown = [token for token in tokens if token not in vocabulary]
    if unknown:
        raise UserError(
            f"adapter.trainable_tokens: {', '.join(map(repr, unknown))} are not in the vocabulary; model.new_tokens adds them"
        )
    ids = sorted(vocabulary[token] for token in tokens)
    names = {module: name for name, module in model.named_modules()}
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False))
    rows = {}
    for module in (embeddings, None if tied else head):
        if module is None or saves(model, config, module):
            continue
        if not method.tokens or targets(model, config, module):
            raise UserError(
                f"adapter: the rows of {', '.join(tokens)} would stay as they were made, random and frozen: {config.method} "
                "cannot train single rows of a matrix here; use a LoRA method that does not target it, or put it into "
                "adapter.modules_to_save"
            )
        rows[names[module]] = ids
    return rows


def check_head(model: PreTrainedModel, config: AdapterConfig, method: Method) -> None:
    """The loss takes the head's matrix, never its forward, so an adapter there must be something to add to the matrix. Raises
    UserError for any other."""
    if targets(model, config, model.get_output_embeddings()) and (not method.additive or config.dropout):
        raise UserError(
            f"adapter.target_modules: the output head can only have an adapter that adds to its matrix, without dropout "
            f"(method {config.method}, dropout {config.dropout:g}); put it into adapter.modules_to_save"
        )
