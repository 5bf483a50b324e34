"""Alpaca: `instruction` with an `input` that may be empty, and the `output`; a conversation of two turns.

The instruction and its input become one user message, an empty line between them, so that the model's own chat template
is used and not the prompt text of the first Alpaca models.
"""

from __future__ import annotations

from typing import Any

from toolkit.data.examples import Chat, Message
from toolkit.data.messages import build_chat, string, text
from toolkit.data.rows import Row, RowError
from toolkit.data.shapes.shape import Shape


def _build(values: dict[str, Any], row: Row, train_on: str) -> Chat:
    messages: list[Message] = []
    if values["system"]:
        messages.append({"role": "system", "content": string(values["system"], "system", row)})
    messages += _history(values["history"], row)
    asked = text(values["instruction"], "instruction", row)
    more = string(values["input"] or "", "input", row)
    start = len(messages)
    messages.append({"role": "user", "content": f"{asked}\n\n{more}" if more.strip() else asked})
    messages.append({"role": "assistant", "content": text(values["output"], "output", row)})
    return build_chat(messages, None, row, start=start if train_on == "completion" else 0, train_on=train_on)


def _history(turns: Any, row: Row) -> list[Message]:
    """Earlier rounds, as some files have them: a list of [question, answer]."""
    pairs = turns or []
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise RowError(row.where, "history must be a list of [question, answer]", advice="correct or remove it")
    messages = []
    for question, answer in pairs:
        messages.append({"role": "user", "content": string(question, "history", row)})
        messages.append({"role": "assistant", "content": string(answer, "history", row)})
    return messages


ALPACA = Shape(
    "instruction+output",
    ("instruction", "output"),
    ("input", "system", "history"),
    _build,
    ("assistant", "last_assistant", "completion", "all"),
)
