"""Rows of a file as prompts: any shape that recipes learn from, with the answers there or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.chat.asking import Asking
from toolkit.config import DataConfig
from toolkit.data.examples import Chat, Completion, Message, Text, sides_of
from toolkit.data.messages import TAGS
from toolkit.data.rows import Row, RowError
from toolkit.data.shapes import SHAPES, detect_shape, to_example
from toolkit.data.shapes.prompt_completion import PROMPT_COMPLETION
from toolkit.data.shapes.shape import Shape
from toolkit.data.sources import find_sources, read_rows
from toolkit.errors import UserError

# The column that has the answer, by the one that has the question.
_ANSWERS = {"prompt": "completion", "instruction": "output", "user": "assistant"}
_MESSAGES = ("messages", "conversations")
_STAND_IN = "?"  # for an answer that is not there, where a shape needs one


@dataclass(frozen=True)
class Question:
    """row: its line in the file. prompt: messages, or text to be continued. reference: the answer the row has."""

    row: int
    prompt: list[Message] | str
    ids: list[int]
    reference: str | None


def read_questions(
    file: Path, asking: Asking, columns: Mapping[str, str] | None, say: Callable[[str], None]
) -> list[Question]:
    """All rows of `file`. columns: `data.columns` of the run, used where the file has what they name.

    Rows of text, and of a prompt and completion in text, are continued as they are; a prompt that stands alone is a user's
    message where the model has a chat template. Raises UserError that names the row for what cannot be asked.
    """
    if not file.exists():
        raise UserError(f"--prompts: {file.absolute()} does not exist")
    rows = [row for source in find_sources(DataConfig(train=str(file)), "train") for row in read_rows(source)]
    if not rows:
        raise UserError(f"--prompts: {file} has no rows")
    names = {name for row in rows for name in row.values}
    used = {ours: theirs for ours, theirs in (columns or {}).items() if theirs in names}
    # A question is mapped, its answer is not there: it is what it would be called unmapped.
    mapping = {**{answered: answered for asked, answered in _ANSWERS.items() if asked in used}, **used}
    shape = _shape(names, mapping, file)
    bare = shape.name == PROMPT_COMPLETION.name and mapping.get("completion", "completion") not in names
    questions = [_question(row, shape, mapping, asking, bare=bare) for row in rows]
    texts = sum(isinstance(question.prompt, str) for question in questions)
    how = "through the chat template" if not texts else "as plain text, without a chat template"
    if 0 < texts < len(questions):
        how = f"through the chat template, but {texts} as plain text"
    named = f" (data.columns of the run: {used})" if used else ""
    say(f"prompts: {len(questions)} rows of shape {shape.name}{named}, {how}")
    return questions


def _shape(names: set[str], mapping: dict[str, str], file: Path) -> Shape:
    """What the columns show, as if those with the answers were there."""
    there = names | set(mapping.values())
    there |= {answered for asked, answered in _ANSWERS.items() if asked in names and "chosen" not in names}
    try:
        return detect_shape(there, mapping, tuple(SHAPES))
    except UserError:
        listed = " | ".join(["prompt", *(shape.name for shape in SHAPES.values() if not shape.by_mapping)])
        found = ", ".join(sorted(names))
        raise UserError(f"--prompts: {file}: no known shape: columns found: {found}; accepted: {listed}") from None


def _question(row: Row, shape: Shape, mapping: Mapping[str, str], asking: Asking, *, bare: bool) -> Question:
    values, answered = _with_answer({**row.values}, mapping, shape)
    if bare and isinstance(values.get(mapping.get("prompt", "prompt")), str) and asking.has_template:
        text = values[mapping.get("prompt", "prompt")]
        return _asked(row, [{"role": "user", "content": text}] if text.strip() else "", None, asking, None)
    example = sides_of(to_example(Row(values, row.path, row.line), shape, mapping))[0]
    if isinstance(example, Text):
        return _asked(row, example.text, None, asking, None)
    if isinstance(example, Completion):
        return _asked(row, example.prompt, None, asking, example.completion if answered else None)
    assert isinstance(example, Chat)
    last = max(i for i, message in enumerate(example.messages) if message["role"] == "assistant")
    reference = example.messages[last]["content"] if answered else None
    return _asked(row, example.messages[:last], example.tools, asking, reference)


def _asked(
    row: Row, prompt: list[Message] | str, tools: list[Any] | None, asking: Asking, reference: str | None
) -> Question:
    if isinstance(prompt, str):
        if asking.system is not None:
            raise RowError(row.where, "--system has no place in plain text", advice="give rows with messages")
        ids = asking.text(prompt)
    else:
        if asking.system is not None and prompt and prompt[0]["role"] in ("system", "developer"):
            raise RowError(row.where, "the row has a system message of its own", advice="leave --system out")
        if not asking.has_template:
            raise RowError(row.where, "the model has no chat template", advice="give rows of text")
        ids = asking.chat(prompt, tools, row.where) if prompt else []
    if not ids:
        raise RowError(row.where, "empty prompt", advice="remove the row")
    return Question(row.line, prompt, ids, reference)


def _with_answer(values: dict[str, Any], mapping: Mapping[str, str], shape: Shape) -> tuple[dict[str, Any], bool]:
    """The row with a stand-in where it has no answer, and whether it has one; without what it says of supervision."""
    for name in [*_MESSAGES, "prompt", "completion"]:
        column = mapping.get(name, name)
        if isinstance(values.get(column), list):
            values[column] = [_unsupervised(message) for message in values[column]]
    for name in _MESSAGES:
        column = mapping.get(name, name)
        if name in shape.needed and isinstance(values.get(column), list) and values[column]:
            last = values[column][-1]
            role = (last.get("role") or TAGS.get(str(last.get("from")))) if isinstance(last, dict) else None
            if role != "assistant":
                values[column].append({"role": "assistant", "content": _STAND_IN})
            return values, role == "assistant"
    for asked, answered in _ANSWERS.items():
        column = mapping.get(answered, answered)
        if asked in shape.needed and answered in shape.needed and not values.get(column):
            messages = isinstance(values.get(mapping.get(asked, asked)), list)
            values[column] = [{"role": "assistant", "content": _STAND_IN}] if messages else _STAND_IN
            return values, False
    return values, True


def _unsupervised(message: Any) -> Any:
    return {k: v for k, v in message.items() if k not in ("train", "weight")} if isinstance(message, dict) else message
