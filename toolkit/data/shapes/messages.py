"""`messages`: a conversation in the form of the chat APIs, with `tools` where the model may call some."""

from __future__ import annotations

from typing import Any

from toolkit.data.examples import Chat
from toolkit.data.messages import build_chat, conversation
from toolkit.data.rows import Row
from toolkit.data.shapes.shape import Shape


def _build(values: dict[str, Any], row: Row, train_on: str) -> Chat:
    messages = conversation(values["messages"], "messages", row)
    return build_chat(messages, values["tools"], row, start=0, train_on=train_on)


MESSAGES = Shape("messages", ("messages",), ("tools",), _build, ("assistant", "last_assistant", "all"))
