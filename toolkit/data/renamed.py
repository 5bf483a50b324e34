"""A tokenizer that knows the control tokens by other names only, so that their own names are plain text to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from toolkit.data.pasted import with_marker
from toolkit.errors import UserError


@dataclass(frozen=True)
class Renamed:
    """`ids`: from ids of `backend` to those of the tokenizer it was made from, where they differ."""

    backend: Tokenizer
    ids: dict[int, int]


# Making one takes a second for a large vocabulary. The usual marker serves nearly every row; a few others are kept.
_KEPT = 3
_RENAMED: WeakKeyDictionary[PreTrainedTokenizerBase, dict[object, Renamed]] = WeakKeyDictionary()


def renamed(tokenizer: PreTrainedTokenizerBase, tokens: frozenset[str], marker: str) -> Renamed:
    """The tokenizer with `marker` in the names of `tokens`. Raises `UserError` where that can't be done."""
    known = _RENAMED.setdefault(tokenizer, {})
    key = (len(tokenizer), tokens, marker)
    if key not in known:
        while len(known) >= _KEPT:
            del known[next(iter(known))]
        known[key] = _rename(tokenizer, tokens, marker)
    return known[key]


def _rename(tokenizer: PreTrainedTokenizerBase, tokens: frozenset[str], marker: str) -> Renamed:
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
    ids = {}
    for number, token in source.get_added_tokens_decoder().items():
        other = backend.token_to_id(names.get(token.content, token.content))
        if other is not None and other != number:
            ids[other] = number
    found = Renamed(backend, ids)
    _check(tokenizer, found, names)
    return found


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


def _check(tokenizer: PreTrainedTokenizerBase, found: Renamed, names: dict[str, str]) -> None:
    own = tokenizer.added_tokens_encoder
    for token, name in names.items():
        if token not in own:
            continue
        as_token = [found.ids.get(i, i) for i in found.backend.encode(name, add_special_tokens=False).ids]
        as_text = [found.ids.get(i, i) for i in found.backend.encode(token, add_special_tokens=False).ids]
        if own[token] not in as_token or (own[token] in as_text and token != tokenizer.unk_token):
            raise UserError(
                f"control token {token} in the text of a message cannot be encoded as plain text with this tokenizer; "
                "set data.control_tokens: token"
            )
