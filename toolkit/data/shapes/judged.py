"""`prompt`, `completion` and a `label`: an answer that is desirable (true) or not (false)."""

from __future__ import annotations

from typing import Any

from toolkit.data.examples import Judged
from toolkit.data.messages import kind_of
from toolkit.data.rows import Row, RowError
from toolkit.data.shapes.prompt_completion import PROMPT_COMPLETION
from toolkit.data.shapes.shape import Shape

_WORDS = {"true": True, "false": False, "1": True, "0": False}  # of CSV files


def _build(values: dict[str, Any], row: Row, train_on: str) -> Judged:
    label = values["label"]
    known = _WORDS.get(str(label).strip().lower()) if isinstance(label, (bool, int, str)) else None
    if known is None:
        shown = repr(label)[:40]
        raise RowError(row.where, "label must be true or false", f"got {kind_of(label)} {shown}")
    answer = PROMPT_COMPLETION.build(values, row, "completion")
    return Judged(answer, known)  # type: ignore[arg-type]


JUDGED = Shape(
    "prompt+completion+label", ("prompt", "completion", "label"), ("tools",), _build, ("assistant", "completion")
)
