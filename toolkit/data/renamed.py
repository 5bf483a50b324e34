"""A tokenizer that knows the control tokens by other names only, so that their own names are plain text to it."""

from __future__ import annotations

import json
from typing import Any
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from toolkit.data.pasted import with_marker
from toolkit.errors import UserError

# Making one takes a second for a large vocabulary. The usual marker serves nearly every row; a few others are kept.
_KEPT = 3
_RENAMED: WeakKeyDictionary[PreTrainedTokenizerBase, dict[object, Tokenizer]] = WeakKeyDictionary()


def renamed(tokenizer: PreTrainedTokenizerBase, tokens: frozenset[str], marker: str) -> Tokenizer:
    """What `tokenizer` calls to cut a text, with `marker` in the names of `tokens` and the ids as ever.

    Raises `UserError` where the names would still act, such as with a normalizer that takes the marker off.
    """
    known = _RENAMED.setdefault(tokenizer, {})
    key = (len(tokenizer), tokens, marker)
    if key not in known:
        while len(known) >= _KEPT:
            del known[next(iter(known))]
        known[key] = _rename(tokenizer, tokens, marker)
    return known[key]


def _rename(tokenizer: PreTrainedTokenizerBase, tokens: frozenset[str], marker: str) -> Tokenizer:
    names = {token: with_marker(token, marker) for token in tokens}
    source = tokenizer.backend_tokenizer
    spec = json.loads(source.to_str())
    for added in spec["added_tokens"]:
        added["content"] = names.get(added["content"], added["content"])
    _rename_model(spec["model"], names)
    backend = Tokenizer.from_str(json.dumps(spec))
    backend.encode_special_tokens = source.encode_special_tokens
    backend.no_truncation()
    backend.no_padding()
    _check(tokenizer, backend, names)
    return backend


def _rename_model(model: dict[str, Any], names: dict[str, str]) -> None:
    """Vocabularies list control tokens too, where plain text could reach them: in one piece or by a merge."""
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(piece, piece): number for piece, number in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
        model["merges"] = [[a, b] for a, b in pairs if a not in names and b not in names and a + b not in names]


def _check(tokenizer: PreTrainedTokenizerBase, backend: Tokenizer, names: dict[str, str]) -> None:
    for number, added in tokenizer.added_tokens_decoder.items():
        token = str(added)
        name = names.get(token, token)
        ids = backend.encode(token, add_special_tokens=False).ids
        acts = name != token and number in ids and token != tokenizer.unk_token
        if backend.token_to_id(name) != number or acts:
            raise UserError(
                f"control token {token} in the text of a message cannot be encoded as plain text with this tokenizer; "
                "set data.control_tokens: token"
            )
