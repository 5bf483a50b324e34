"""The fixed part of a template's rendering, kept for conversations of the same roles.

Finding what the assistant wrote takes several renderings for each message (`spans`). For messages of role and content
alone the outcome is nearly always the same: fixed texts with the contents between them. So it is found once, on a
conversation of made-up contents, and reused for a row only where putting the row's contents into the fixed texts gives
exactly what the template renders: the conversation, and each prompt that a supervised answer follows, unless prompts
are constant. A template that looks at what a message says renders something else then, and the row takes the long way.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

from toolkit.data.constant_prompt import has_constant_prompt
from toolkit.data.examples import Chat
from toolkit.data.render import Span
from toolkit.data.spans import Turns, assistant_spans
from toolkit.data.template import render, template_profile

_KEPT = 512
Place = tuple[int, int]  # a number of contents, and a number of characters of the fixed text after the last of them


@dataclass(frozen=True)
class _Filling:
    """Fixed texts, and the messages whose contents go between them."""

    pieces: tuple[str, ...]
    slots: tuple[int, ...]

    def fill(self, contents: list[str]) -> str:
        """The text with these contents."""
        parts = [self.pieces[0]]
        for slot, piece in zip(self.slots, self.pieces[1:], strict=True):
            parts += (contents[slot], piece)
        return "".join(parts)

    def starts(self, contents: list[str]) -> list[int]:
        """Where each fixed text starts."""
        starts = [0]
        for slot, piece in zip(self.slots, self.pieces, strict=False):
            starts.append(starts[-1] + len(piece) + len(contents[slot]))
        return starts


@dataclass(frozen=True)
class _Skeleton:
    """`turns`: for each assistant message, where it is learnt from and to, and whether a token closes it. `prompts`:
    what the template renders up to it. `apart`: those of them that the conversation does not begin with, so that an
    answer may itself begin with what the prompt ends in. `suffix`: the end that is added if the last message is learnt.
    """

    whole: _Filling
    turns: dict[int, tuple[Place, Place, bool]]
    prompts: dict[int, _Filling]
    apart: frozenset[int]
    constant_prompt: bool
    suffix: str


_CACHE: WeakKeyDictionary[PreTrainedTokenizerBase, dict[object, _Skeleton | None]] = WeakKeyDictionary()


def quick_spans(chat: Chat, tokenizer: PreTrainedTokenizerBase) -> Turns | None:
    """What `assistant_spans` gives, in one rendering and one for each prompt; None where that is not certain."""
    if chat.learnt is None or any(len(message) != 2 for message in chat.messages):
        return None
    contents = [message["content"] for message in chat.messages]
    if not all(map(str.strip, contents)):
        return None
    skeleton = _skeleton(chat, tokenizer)
    if skeleton is None:
        return None
    learnt = [i for i, flag in enumerate(chat.learnt) if flag]
    try:
        text = render(tokenizer, chat.messages, chat.tools)
        filled = next((f for f in (contents, [c.strip() for c in contents]) if skeleton.whole.fill(f) == text), None)
        if filled is None or not _prompts_hold(chat, learnt, skeleton, filled, text, tokenizer):
            return None
    except Exception:  # the long way tells what is wrong
        return None
    starts = skeleton.whole.starts(filled)
    spans: list[Span] = []
    for i in learnt:
        (a, b), (c, d), _ = skeleton.turns[i]
        spans.append((starts[a] + b, starts[c] + d))
    text += skeleton.suffix if chat.learnt[-1] else ""
    return Turns(text, spans, not all(skeleton.turns[i][2] for i in learnt))


def _prompts_hold(
    chat: Chat,
    learnt: list[int],
    skeleton: _Skeleton,
    contents: list[str],
    text: str,
    tokenizer: PreTrainedTokenizerBase,
) -> bool:
    for i in learnt:
        if i == 0 or (skeleton.constant_prompt and i not in skeleton.apart):
            continue
        prompt = skeleton.prompts[i].fill(contents)
        if i in skeleton.apart and text.startswith(prompt):
            return False
        if not skeleton.constant_prompt and prompt != render(tokenizer, chat.messages[:i], chat.tools, prompt=True):
            return False
    return True


def _skeleton(chat: Chat, tokenizer: PreTrainedTokenizerBase) -> _Skeleton | None:
    if template_profile(tokenizer, chat.tools).marked:  # marks are as quick, and may depend on what a message says
        return None
    roles = tuple(message["role"] for message in chat.messages)
    tools = json.dumps(chat.tools) if chat.tools else None
    key = (tokenizer.get_chat_template(None, chat.tools), len(tokenizer), roles, tools)
    known = _CACHE.setdefault(tokenizer, {})
    if key not in known:
        if len(known) >= _KEPT:
            del known[next(iter(known))]
        known[key] = _find(roles, chat.tools, tokenizer)
    return known[key]


def _find(roles: tuple[str, ...], tools: list[Any] | None, tokenizer: PreTrainedTokenizerBase) -> _Skeleton | None:
    """The skeleton for these roles, or None where made-up contents don't come out once each, or can't be masked."""
    contents = [f"\uf000{i}\uf001" for i in range(len(roles))]
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
    answers = [i for i, role in enumerate(roles) if role == "assistant"]
    try:
        text = render(tokenizer, messages, tools)
        # One at a time, so that it shows for each whether a token closes it.
        found = {i: assistant_spans(Chat(messages, tools, _only(i, len(roles))), tokenizer) for i in answers}
        prompts = {i: render(tokenizer, messages[:i], tools, prompt=True) for i in answers if i > 0}
    except Exception:  # refused or not maskable: each row tells its own reason
        return None
    whole = _filling(text, contents, len(roles))
    fillings = {i: _filling(prompt, contents, i) for i, prompt in prompts.items()}
    if whole is None or any(filling is None for filling in fillings.values()):
        return None
    turns = {}
    for i, turn in found.items():
        places = [_place(whole, contents, position) for span in turn.spans for position in span]
        if len(places) != 2 or None in places:
            return None
        turns[i] = (places[0], places[1], not turn.turn_end_missing)
    suffix = found[len(roles) - 1].text[len(text) :] if roles[-1] == "assistant" else ""
    apart = frozenset(i for i, prompt in prompts.items() if not text.startswith(prompt))
    constant = has_constant_prompt(tokenizer.get_chat_template(None, tools))
    return _Skeleton(whole, turns, fillings, apart, constant, suffix)  # type: ignore[arg-type]


def _only(index: int, length: int) -> tuple[bool, ...]:
    return tuple(i == index for i in range(length))


def _filling(text: str, contents: list[str], count: int) -> _Filling | None:
    """`text` taken apart at the first `count` contents, each of which must be in it once, and no other."""
    if any(text.count(content) != (i < count) for i, content in enumerate(contents)):
        return None
    slots = sorted(range(count), key=lambda i: text.find(contents[i]))
    pieces, position = [], 0
    for slot in slots:
        start = text.find(contents[slot])
        pieces.append(text[position:start])
        position = start + len(contents[slot])
    return _Filling((*pieces, text[position:]), tuple(slots))


def _place(filling: _Filling, contents: list[str], position: int) -> Place | None:
    """`position` in the filled text, told by fixed texts; None within a content."""
    starts = filling.starts(contents)
    number = bisect_right(starts, position) - 1
    offset = position - starts[number]
    last = number == len(filling.pieces) - 1
    return (number, offset) if last or offset <= len(filling.pieces[number]) else None
