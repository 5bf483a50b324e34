"""One row as the model sees it: its tokens, and which message of the conversation each of them is part of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from toolkit.data.examples import Chat, Completion, Example, Text
from toolkit.inspect.collect import Collected, Part
from toolkit.inspect.scan import runs

TEMPLATE = "template"
_LONGEST_PENDING = 8
_MOST_PLACES = 100
_LEAST_MATCH = 12  # characters of a message that must be there to recognise one that was cut short


@dataclass(frozen=True)
class Token:
    """`text` is what the token adds to the text: "" where it is but the first bytes of a character."""

    id: int
    text: str
    supervised: bool
    special: bool


@dataclass(frozen=True)
class Block:
    """Tokens that belong together. role: of a message (user, assistant, ...), `template` for what the chat template
    writes around them, `prompt` and `completion`, or `text`."""

    role: str
    tokens: list[Token]


@dataclass(frozen=True)
class ShownRow:
    """One row to show; `blocks` hold all of its tokens in order."""

    place: str
    tokens: int
    supervised: int
    blocks: list[Block]


def shown_row(data: Collected, part: Part, row: int) -> ShownRow:
    """The row with its tokens in role blocks. Never fails over a row that cannot be told apart: it is one block then."""
    ids, mask = part.rows.ids(row), part.rows.labels(row) != -100
    texts = token_texts(ids.tolist(), data.decode, data.special)
    tokens = [
        Token(i, text, learnt, i in data.special)
        for i, text, learnt in zip(ids.tolist(), texts, mask.tolist(), strict=True)
    ]
    roles = _roles(tokens, part.example(row))
    return ShownRow(part.place(row), len(ids), int(mask.sum()), _blocks(tokens, roles))


def chosen_rows(count: int, wanted: int) -> list[int]:
    """`wanted` rows, evenly spaced from the first to the last."""
    return sorted({int(row) for row in np.linspace(0, count - 1, min(wanted, count)).round()}) if count else []


def token_texts(ids: list[int], decode: Callable[[list[list[int]]], list[str]], special: frozenset[int]) -> list[str]:
    """What each token adds to the text of the row.

    A token is decoded after the one before it, since many decoders treat the beginning of a text differently. Where it
    ends in the middle of a character, the text goes to the token that completes it.
    """
    texts, context, pending = [""] * len(ids), [], []  # type: list[str], list[int], list[int]
    for index, token in enumerate(ids):
        pending.append(token)
        before, both = decode([context, [*context, *pending]])
        added = both[len(before) :] if both.startswith(before) else decode([pending])[0]
        last = index == len(ids) - 1
        if added.endswith("\ufffd") and len(pending) < _LONGEST_PENDING and not last and ids[index + 1] not in special:
            continue
        texts[index] = added
        context, pending = pending, []
    return texts


def _roles(tokens: list[Token], example: Example | None) -> list[str]:
    """A role for each token."""
    try:
        if isinstance(example, Chat):
            return _chat_roles(tokens, example)
        if isinstance(example, Completion) and not example.learn_prompt:
            return ["completion" if token.supervised else "prompt" for token in tokens]
        if isinstance(example, Text | Completion):
            return ["text"] * len(tokens)
    except (KeyError, TypeError, AttributeError):  # a message of a form not met before is no reason to fail
        pass
    if all(token.supervised for token in tokens[1:]):
        return ["text"] * len(tokens)
    return ["completion" if token.supervised else "prompt" for token in tokens]


def _chat_roles(tokens: list[Token], chat: Chat) -> list[str]:
    """Find each message's content, in order, in the text of the row; the rest is the template's."""
    starts = np.cumsum([0, *(len(token.text) for token in tokens)]).tolist()
    text = "".join(token.text for token in tokens)
    controls = {starts[i] for i, token in enumerate(tokens) if token.special} | {len(text)}
    roles = [TEMPLATE] * len(tokens)
    position = 0
    for number, message in enumerate(chat.messages):
        role, learnt = str(message["role"]), chat.learnt is None or chat.learnt[number]

        def likely(start: int, end: int, learnt: bool = learnt) -> bool:
            """Its content, not the same letters in the frame: learnt as it should be, up to a control token."""
            after = text[end : end + _LEAST_MATCH]
            closes = end + len(after) - len(after.lstrip())
            return tokens[bisect_right(starts, start) - 1].supervised == learnt and bool({end, closes} & controls)

        start, end = _find(text, str(message["content"]), position, likely)
        if start == end:
            continue
        position = end
        first = bisect_right(starts, start) - 1
        # Bytes that begin the first character have no text of their own: they belong to it.
        while first > 0 and not tokens[first - 1].text:
            first -= 1
        index = first
        while index < len(tokens) and starts[index] < end:
            roles[index] = role
            index += 1
        _close(tokens, roles, index, role)
    for start, end in runs(np.array([t.supervised and r == TEMPLATE for t, r in zip(tokens, roles, strict=True)])):
        roles[start:end] = ["assistant"] * (end - start)  # such as a tool call, which the template writes out
    return roles


def _close(tokens: list[Token], roles: list[str], index: int, role: str) -> None:
    """What ends a turn is part of it: the tokens learnt right after a learnt message, or one control token."""
    learnt = index > 0 and tokens[index - 1].supervised
    if not learnt and index < len(tokens) and tokens[index].special:
        roles[index] = role
    while learnt and index < len(tokens) and tokens[index].supervised:
        roles[index] = role
        index += 1


def _find(text: str, content: str, position: int, likely: Callable[[int, int], bool]) -> tuple[int, int]:
    """Where `content` stands in `text` from `position` on: as it is, trimmed, or cut short by the end of the text.

    The first place that is likely; failing that, the first place. (position, position) where it is nowhere.
    """
    for wanted in (content, content.strip()):
        found = start = text.find(wanted, position) if wanted else -1
        for _ in range(_MOST_PLACES):
            if start < 0:
                break
            if likely(start, start + len(wanted)):
                return start, start + len(wanted)
            start = text.find(wanted, start + 1)
        if found >= 0:
            return found, found + len(wanted)
    wanted = content.strip()
    start = text.find(wanted[:_LEAST_MATCH], position) if wanted else -1
    if start >= 0 and wanted.startswith(text[start:].rstrip("\ufffd")):
        return start, len(text)
    return position, position


def _blocks(tokens: list[Token], roles: list[str]) -> list[Block]:
    blocks: list[Block] = []
    for token, role in zip(tokens, roles, strict=True):
        if not blocks or blocks[-1].role != role:
            blocks.append(Block(role, []))
        blocks[-1].tokens.append(token)
    return blocks
