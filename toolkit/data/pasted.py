"""Control tokens that people paste into messages, to be encoded as the plain text they are.

Before rendering, a marker character is put into each pasted token, so that whatever looks like a control token in the
rendering is the template's own. Afterwards it is the other way round: the marker leaves the pasted tokens and goes into
those of the template, and a tokenizer that knows the control tokens by their marked names (`renamed`) takes the whole
text at once. So the text around a token is cut as it always is.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

from toolkit.data.controls import ORDINARY, control_tokens, special_tokens
from toolkit.data.examples import Chat
from toolkit.data.probe import Profile
from toolkit.data.render import Span
from toolkit.data.template import template_profile

_STEERING: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[Profile, frozenset[str]]] = WeakKeyDictionary()


def steering_tokens(tokenizer: PreTrainedTokenizerBase, tools: list[Any] | None = None) -> frozenset[str]:
    """What must not be steered by from within a message: special tokens, and those that open or close a turn."""
    profile = template_profile(tokenizer, tools)
    cached = _STEERING.get(tokenizer)
    if cached is None or cached[0] is not profile:
        header = profile.controls.findall(profile.generation_prompt)
        found = special_tokens(tokenizer) | profile.enders | set(profile.openers.values()) | set(header)
        cached = (profile, frozenset(found - ORDINARY))
        _STEERING[tokenizer] = cached
    return cached[1]


def mark_pasted(chat: Chat, tokenizer: PreTrainedTokenizerBase) -> tuple[Chat, list[str], str]:
    """The conversation with a marker in each pasted control token, these tokens, and the marker ("": none is pasted).

    Roles and the names of fields are left alone: a template decides by them.
    """
    pattern, steering = control_tokens(tokenizer), steering_tokens(tokenizer, chat.tools)
    texts = list(_strings((chat.messages, chat.tools)))
    pasted = [match.group() for text in texts for match in pattern.finditer(text)]
    pasted = [token for token in pasted if token in steering]
    if not pasted:
        return chat, [], ""
    free = (chr(code) for code in range(0xF8FF, 0xE0FF, -1))  # private use
    marker = next(char for char in free if not any(char in t or _escape(char) in t for t in texts))

    def marked(text: str) -> str:
        return pattern.sub(lambda m: with_marker(m.group(), marker) if m.group() in steering else m.group(), text)

    messages = [{k: v if k == "role" else _mapped(v, marked) for k, v in m.items()} for m in chat.messages]
    return Chat(messages, _mapped(chat.tools, marked), chat.learnt), pasted, marker


def with_marker(token: str, marker: str) -> str:
    """The name of a control token that no text has."""
    middle = len(token) // 2
    return token[:middle] + marker + token[middle:]


def swap_markers(
    text: str, spans: list[Span], tokenizer: PreTrainedTokenizerBase, steering: frozenset[str], marker: str
) -> tuple[str, list[Span]]:
    """A rendering with the pasted tokens as they were and the template's own ones marked, and the spans moved along."""
    either = re.compile(f"{marker}|{re.escape(_escape(marker))}|{control_tokens(tokenizer).pattern}")
    alone = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.single_word}
    pieces, position, places, shifts = [], 0, [0], [0]
    for match in either.finditer(text):
        found = match.group()
        pasted = found in (marker, _escape(marker))
        if not pasted and (found not in steering or (found in alone and _within_a_word(match))):
            continue
        pieces += [text[position : match.start()], "" if pasted else with_marker(found, marker)]
        position = match.end()
        places.append(position)
        shifts.append(shifts[-1] + (-len(found) if pasted else len(marker)))
    swapped = "".join([*pieces, text[position:]])

    def moved(place: int) -> int:
        return place + shifts[bisect_left(places, place + 1) - 1]

    return swapped, [(moved(start), moved(end)) for start, end in spans]


def _within_a_word(match: re.Match[str]) -> bool:
    """True if the match is no token, for those that must be words of their own."""
    beside = match.string[max(0, match.start() - 1) : match.start()] + match.string[match.end() : match.end() + 1]
    return re.search(r"\w", beside) is not None


def _escape(marker: str) -> str:
    """How the marker looks where a template writes JSON in ASCII."""
    return json.dumps(marker)[1:-1]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, (list, tuple)) else value
