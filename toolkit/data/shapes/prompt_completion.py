"""`prompt` and `completion`: two strings, or two lists of messages; only the completion is learnt."""

from __future__ import annotations

from typing import Any

from toolkit.data.examples import Chat, Completion
from toolkit.data.messages import build_chat, conversation, kind_of, string, text
from toolkit.data.rows import Row, RowError
from toolkit.data.shapes.shape import Shape


def _build(values: dict[str, Any], row: Row, train_on: str) -> Chat | Completion:
    prompt, completion = values["prompt"], values["completion"]
    if isinstance(prompt, list) != isinstance(completion, list):
        one, other = ("prompt", "completion") if isinstance(prompt, list) else ("completion", "prompt")
        detail = f"got prompt: {kind_of(prompt)}, completion: {kind_of(completion)}"
        raise RowError(row.where, f"{one} is a list of messages, so {other} must be one too", detail)
    if not isinstance(prompt, list):
        return Completion(
            string(prompt, "prompt", row), text(completion, "completion", row), learn_prompt=train_on == "all"
        )
    messages = conversation(prompt, "prompt", row)
    start = len(messages)
    messages += conversation(completion, "completion", row)
    return build_chat(messages, values["tools"], row, start=start, train_on=train_on)


PROMPT_COMPLETION = Shape(
    "prompt+completion",
    ("prompt", "completion"),
    ("tools",),
    _build,
    ("assistant", "last_assistant", "completion", "all"),
)
