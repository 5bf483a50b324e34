"""Columns mapped to roles, such as `data.columns: {user: question, assistant: answer}`: one question, one answer."""

from __future__ import annotations

from typing import Any

from toolkit.data.examples import Chat, Message
from toolkit.data.messages import build_chat, string, text
from toolkit.data.rows import Row
from toolkit.data.shapes.shape import Shape


def _build(values: dict[str, Any], row: Row, train_on: str) -> Chat:
    turns: list[Message] = [{"role": r, "content": text(values[r], r, row)} for r in ("user", "assistant")]
    if values["system"]:
        turns.insert(0, {"role": "system", "content": string(values["system"], "system", row)})
    return build_chat(turns, values["tools"], row, start=0, train_on=train_on)


QUESTION_ANSWER = Shape(
    "user+assistant",
    ("user", "assistant"),
    ("system", "tools"),
    _build,
    ("assistant", "last_assistant", "completion", "all"),
    by_mapping=True,
)
