"""`text`: plain text, learnt whole. Text that was laid out with a chat template beforehand belongs here too."""

from __future__ import annotations

from typing import Any

from toolkit.data.examples import Text
from toolkit.data.messages import text
from toolkit.data.rows import Row
from toolkit.data.shapes.shape import Shape


def _build(values: dict[str, Any], row: Row, train_on: str) -> Text:
    return Text(text(values["text"], "text", row))


# "assistant" is the default of data.train_on; text has no one else to learn from.
TEXT = Shape("text", ("text",), (), _build, ("assistant", "all"))
