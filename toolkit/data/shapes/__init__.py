"""The shapes a row may have. A new one is one file and one line in `SHAPES`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

from toolkit.data.examples import Example
from toolkit.data.rows import Row, RowError
from toolkit.data.shapes.alpaca import ALPACA
from toolkit.data.shapes.judged import JUDGED
from toolkit.data.shapes.messages import MESSAGES
from toolkit.data.shapes.preference import PREFERENCE
from toolkit.data.shapes.prompt_completion import PROMPT_COMPLETION
from toolkit.data.shapes.question_answer import QUESTION_ANSWER
from toolkit.data.shapes.shape import Shape
from toolkit.data.shapes.share_gpt import SHARE_GPT
from toolkit.data.shapes.text import TEXT
from toolkit.errors import UserError

# In the order in which they are looked for: a file of conversations may well have a `prompt` column besides.
SHAPES = {
    shape.name: shape
    for shape in (MESSAGES, SHARE_GPT, PROMPT_COMPLETION, ALPACA, QUESTION_ANSWER, PREFERENCE, JUDGED, TEXT)
}
SUPERVISED = tuple(name for name in SHAPES if name not in (PREFERENCE.name, JUDGED.name))
PREFERENCES = (PREFERENCE.name,)
JUDGEMENTS = (JUDGED.name,)
TEXTS = (TEXT.name,)


def detect_shape(
    columns: Collection[str], mapping: Mapping[str, str] | None = None, accepted: Collection[str] = SUPERVISED
) -> Shape:
    """The shape of rows with these columns, one of the `accepted` names.

    `mapping` gives our names for the file's columns, {"prompt": "q", "completion": "a"}; what it names goes before
    what merely happens to be in the file. Raises `UserError` that lists what was found and what is accepted.
    """
    mapping = mapping or {}
    _check_mapping(columns, mapping)
    shapes = [SHAPES[name] for name in SHAPES if name in accepted]
    for shape in shapes:
        if mapping and set(shape.needed) <= set(mapping):
            return shape
    names = (set(columns) - set(mapping.values())) | set(mapping)
    found = [shape for shape in SHAPES.values() if not shape.by_mapping and set(shape.needed) <= names]
    fitting = [shape for shape in found if shape.name in accepted]
    if fitting:
        return fitting[0]
    listed = " | ".join(shape.name for shape in shapes if not shape.by_mapping)
    message = f"no known shape: columns found: {', '.join(sorted(columns)) or 'none'}; accepted: {listed}; "
    if found:
        raise UserError(f"{message}this recipe does not learn from {found[0].name} rows")
    wanted = sorted({name for shape in shapes if not shape.by_mapping for name in shape.needed})
    guesses = [(c, get_close_matches(c.lower(), wanted, 1, 0.7)) for c in sorted(names) if c not in wanted]
    hints = [f"did you mean {guess[0]!r} by {column!r}?" for column, guess in guesses if guess]
    raise UserError(message + (" ".join(hints) or "set data.columns, for example {user: question, assistant: answer}"))


def _check_mapping(columns: Collection[str], mapping: Mapping[str, str]) -> None:
    known = sorted({name for shape in SHAPES.values() for name in (*shape.needed, *shape.optional)})
    for ours, theirs in mapping.items():
        if ours not in known:
            raise UserError(f"data.columns: {ours!r} is not a name we know; known: {', '.join(known)}")
        if theirs not in columns:
            found = ", ".join(sorted(columns)) or "none"
            raise UserError(f"data.columns.{ours}: column {theirs!r} does not exist; columns found: {found}")


def used_columns(shape: Shape, mapping: Mapping[str, str] | None = None) -> set[str]:
    """The file's columns that examples of `shape` are made of; all others are ignored, and the caller should say so."""
    mapping = mapping or {}
    return {mapping.get(name, name) for name in (*shape.needed, *shape.optional)}


def check_train_on(shape: Shape, train_on: str) -> None:
    """Raise `UserError` where `data.train_on` means nothing for rows of `shape`."""
    if train_on not in shape.train_on:
        allowed = ", ".join(shape.train_on)
        raise UserError(f"data.train_on: {train_on} means nothing for rows of shape {shape.name}; use one of {allowed}")


def to_example(
    row: Row, shape: Shape, mapping: Mapping[str, str] | None = None, train_on: str = "assistant"
) -> Example:
    """Check `row` against `shape` (from `detect_shape`) and build its example. Raises `RowError` saying what is off."""
    mapping = mapping or {}
    values = {name: row.values.get(mapping.get(name, name)) for name in (*shape.needed, *shape.optional)}
    for name in shape.needed:
        column = mapping.get(name, name)
        if row.values.get(column) is None:
            raise RowError(row.where, f"column {column!r} is missing or null", f"columns: {', '.join(row.values)}")
    return shape.build(values, row, train_on)
