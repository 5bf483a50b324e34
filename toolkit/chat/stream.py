"""Text of tokens as they come."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

_PART = "\ufffd"  # what bytes decode to that are no whole character, or not yet
_PARTS = 3  # a character of UTF-8 has four bytes at most, and decoders write one sign for each byte, or one for all


def text_of(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    """The text of `ids` without control tokens, spaces as they are."""
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class TextStream(BaseStreamer):
    """Give `write` the text of each new token at once; a character of several tokens when its last byte is there.

    Only what came since the last whole character is decoded again, with what was written before it, since some tokenizers
    write a space or not depending on what precedes. transformers' TextStreamer waits for the end of a word.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stops: Collection[int], write: Callable[[str], None]
    ) -> None:
        self._tokenizer, self._stops, self._write = tokenizer, stops, write
        self._ids: list[int] = []
        self._start = self._read = 0
        self._shown = (
            ""  # of the text of the ids from `start` on; it is that of all before `read`, or some of what follows
        )
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        """The prompt `[1, seq]` at first, then token after token `[1]`."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self._ids += [one for one in torch.as_tensor(value).flatten().tolist() if one not in self._stops]
        self._write_new(whole=True)

    def end(self) -> None:
        """Write what was held back, be it no whole character."""
        self._write_new(whole=False)

    def _write_new(self, *, whole: bool) -> None:
        now = text_of(self._tokenizer, self._ids[self._start :])
        if whole and now.endswith(_PART):
            held = min(len(now) - len(now.rstrip(_PART)), _PARTS)
            sure = now[:-held]  # what comes before three such signs will never be a character
            if len(sure) > len(self._shown) and sure.startswith(self._shown):
                self._write(sure[len(self._shown) :])
                self._shown = sure
            return
        if len(now) <= len(self._shown):
            return
        self._write(now[len(self._shown) :])
        self._start, self._read = self._read, len(self._ids)
        self._shown = text_of(self._tokenizer, self._ids[self._start :])
