"""The control tokens of a tokenizer: which they are, and where they stand in a text."""

from __future__ import annotations

import re
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

# Some tokenizers list these as special, but they are what an answer says, and templates look for them in it.
ORDINARY = frozenset({"<think>", "</think>", "[THINK]", "[/THINK]"})
# Tokens that stand for a byte that no other token has.
_BYTE = re.compile("<0x[0-9A-F]{2}>")
# By number of tokens, to notice new ones.
_PATTERNS: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, re.Pattern[str]]] = WeakKeyDictionary()


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """A pattern of all added and special tokens (longest first, as the tokenizer takes them)."""
    cached = _PATTERNS.get(tokenizer)
    if cached is not None and cached[0] == len(tokenizer):
        return cached[1]
    texts = {str(token) for token in tokenizer.added_tokens_decoder.values()} | set(tokenizer.all_special_tokens)
    longest_first = sorted((text for text in texts if text), key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(text) for text in longest_first) or "(?!)")
    _PATTERNS[tokenizer] = (len(tokenizer), pattern)
    return pattern


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """The tokens that steer a model; ordinary added tokens, such as `<think>`, do not."""
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    special |= set(tokenizer.all_special_tokens)
    return {token for token in special - ORDINARY if not _BYTE.fullmatch(token)}


def closers(tail: str, controls: re.Pattern[str]) -> list[str]:
    """The run of control tokens that `tail` begins with, after optional white space."""
    position, found = len(tail) - len(tail.lstrip()), []
    while match := controls.match(tail, position):
        found.append(match.group())
        position = match.end()
    return found


def snap(position: int, text: str, controls: re.Pattern[str]) -> int:
    """`position`, or the start of the control token it would cut in two."""
    inside = (match for match in controls.finditer(text) if match.start() < position < match.end())
    return next((match.start() for match in inside), position)
