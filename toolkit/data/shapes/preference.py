"""Preference pairs: `chosen` and `rejected` answers, with their `prompt` in a column or as the messages they share.

The prompt of two conversations is the messages they begin with alike; text is never cut by comparing characters, which
would move the first letters that two answers share into the question.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from toolkit.data.examples import Completion, Message, Preference
from toolkit.data.messages import build_chat, conversation, kind_of, string, text
from toolkit.data.rows import Row, RowError
from toolkit.data.shapes.shape import Shape


def _build(values: dict[str, Any], row: Row, train_on: str) -> Preference:
    chosen, rejected, prompt = values["chosen"], values["rejected"], values["prompt"]
    if isinstance(chosen, list) != isinstance(rejected, list):
        detail = f"got chosen: {kind_of(chosen)}, rejected: {kind_of(rejected)}"
        raise RowError(row.where, "chosen and rejected must both be text or both be lists of messages", detail)
    if not isinstance(chosen, list):
        if prompt is None:
            advice = "add the prompt as a column of its own"
            raise RowError(row.where, "chosen and rejected are text without a prompt", advice=advice)
        asked = string(prompt, "prompt", row)
        answers = [text(chosen, "chosen", row), text(rejected, "rejected", row)]
        if answers[0] == answers[1]:
            raise RowError(row.where, "chosen equals rejected", advice="remove the row")
        return Preference(Completion(asked, answers[0]), Completion(asked, answers[1]))
    sides = [conversation(chosen, "chosen", row), conversation(rejected, "rejected", row)]
    asked_messages = _prompt(prompt, sides, row)
    if sides[0] == sides[1]:
        raise RowError(row.where, "chosen equals rejected", advice="remove the row")
    for one, other, names in ((*sides, "chosen is a prefix of rejected"), (*sides[::-1], "rejected is a prefix of chosen")):
        if other[: len(one)] == one:
            raise RowError(row.where, names, advice="the answers must differ in a message, not end earlier")
    start = len(asked_messages)
    chats = [build_chat([*asked_messages, *side], values["tools"], row, start=start, train_on="assistant") for side in sides]
    return Preference(*chats)


def _prompt(prompt: Any, sides: list[list[Message]], row: Row) -> list[Message]:
    """The prompt's messages; `sides` lose them where they repeat them."""
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if prompt is not None:
        asked = conversation(prompt, "prompt", row)
        if all(side[: len(asked)] == asked for side in sides):
            for side in sides:
                del side[: len(asked)]
            return asked
        if all(side and side[0]["role"] == "assistant" for side in sides):
            return asked
        advice = "begin both with the prompt's messages, or with the answer"
        raise RowError(row.where, "chosen and rejected do not go on from the prompt", advice=advice)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(*sides, strict=False))))
    # Where one side ends inside the other there is nothing to compare; said by the caller, with the messages at hand.
    if shared == min(map(len, sides)):
        return []
    if shared == 0:
        raise RowError(row.where, "chosen and rejected share no prompt", advice="they must begin with the same messages")
    asked = sides[0][:shared]
    for side in sides:
        del side[:shared]
    return asked


PREFERENCE = Shape("chosen+rejected", ("chosen", "rejected"), ("prompt", "tools"), _build, ("assistant", "completion"))
