"""ShareGPT `conversations`: turns of `from` and `value`, with `system` and `tools` beside them in some files."""

from __future__ import annotations

from typing import Any

from toolkit.data.examples import Chat
from toolkit.data.messages import build_chat, conversation, string
from toolkit.data.rows import Row
from toolkit.data.shapes.shape import Shape


def _build(values: dict[str, Any], row: Row, train_on: str) -> Chat:
    messages = conversation(values["conversations"], "conversations", row)
    if values["system"]:
        messages.insert(0, {"role": "system", "content": string(values["system"], "system", row)})
    return build_chat(messages, values["tools"], row, start=0, train_on=train_on)


SHARE_GPT = Shape(
    "conversations", ("conversations",), ("system", "tools"), _build, ("assistant", "last_assistant", "all")
)
