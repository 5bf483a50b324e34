"""The shapes a row may have, and the checks that turn a row into an example.

messages              a conversation; every assistant turn is learnt
prompt + completion   two strings, or two lists of messages; only the completion is learnt
text                  plain text, all of it learnt
roles                 columns mapped to roles, such as {"user": "question", "assistant": "answer"}
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from toolkit.data.sources import Row, RowError
from toolkit.errors import UserError

ROLES = ("system", "user", "assistant", "tool", "developer")
_SHAPES = {
    "messages": ("messages",),
    "prompt+completion": ("prompt", "completion"),
    "text": ("text",),
    "roles": ("user", "assistant"),
}
_OPTIONAL = {"messages": ("tools",), "prompt+completion": ("tools",), "text": (), "roles": ("system", "tools")}
_FILE_SHAPES = ("messages", "prompt+completion", "text")


@dataclass(frozen=True)
class Chat:
    """A conversation. Assistant turns from message index `supervise_from` on are learnt."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    supervise_from: int


@dataclass(frozen=True)
class Completion:
    """Plain text in two parts; only the completion is learnt."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class Text:
    """Plain text, learnt whole."""

    text: str


Example = Chat | Completion | Text


def detect_shape(columns: Collection[str], mapping: dict[str, str] | None = None) -> str:
    """The shape of a file with these columns: "messages", "prompt+completion", "text" or, mapped, "roles".

    `mapping` gives our names for the file's columns, {"prompt": "q", "completion": "a"}; what it names goes before
    what merely happens to be in the file. Raises `UserError` that lists what was found and what is accepted.
    """
    mapping = mapping or {}
    _check_mapping(columns, mapping)
    for shape, needed in _SHAPES.items():
        if mapping and set(needed) <= set(mapping):
            return shape
    names = (set(columns) - set(mapping.values())) | set(mapping)
    for shape in _FILE_SHAPES:
        if set(_SHAPES[shape]) <= names:
            return shape
    wanted = ("messages", "prompt", "completion", "text")
    guesses = [(c, get_close_matches(c.lower(), wanted, 1, 0.7)) for c in sorted(names) if c not in wanted]
    hints = [f"did you mean {found[0]!r} by {column!r}?" for column, found in guesses if found]
    raise UserError(
        f"no known shape: columns found: {', '.join(sorted(columns)) or 'none'}; accepted: "
        f"{' | '.join(_FILE_SHAPES)}; "
        + (" ".join(hints) or "set data.columns, for example {prompt: question, completion: answer}")
    )


def _check_mapping(columns: Collection[str], mapping: dict[str, str]) -> None:
    known = sorted({name for names in (*_SHAPES.values(), *_OPTIONAL.values()) for name in names})
    for ours, theirs in mapping.items():
        if ours not in known:
            raise UserError(f"data.columns: {ours!r} is not a name we know; known: {', '.join(known)}")
        if theirs not in columns:
            found = ", ".join(sorted(columns)) or "none"
            raise UserError(f"data.columns.{ours}: column {theirs!r} does not exist; columns found: {found}")


def used_columns(shape: str, mapping: dict[str, str] | None = None) -> set[str]:
    """The file's columns that examples of `shape` are made of; all others are ignored, and the caller should say so."""
    mapping = mapping or {}
    return {mapping.get(name, name) for name in (*_SHAPES[shape], *_OPTIONAL[shape])}


def to_example(row: Row, shape: str, mapping: dict[str, str] | None = None) -> Example:
    """Check `row` against `shape` (from `detect_shape`) and build its example. Raises `RowError` saying what is off."""
    mapping = mapping or {}
    values = {name: row.values.get(mapping.get(name, name)) for name in (*_SHAPES[shape], *_OPTIONAL[shape])}
    for name in _SHAPES[shape]:
        column = mapping.get(name, name)
        if column not in row.values:
            raise RowError(row.where, f"column {column!r} is missing or null", f"columns: {', '.join(row.values)}")
    if shape == "text":
        return Text(_text(values["text"], "text", row))
    if shape == "prompt+completion" and not isinstance(values["prompt"], list):
        return _completion(values, row)
    if shape == "prompt+completion":
        if not isinstance(values["completion"], list):
            raise RowError(row.where, "prompt is a list of messages, so completion must be one too", _got(values))
        prompt = _messages(values["prompt"], "prompt", row)
        messages, start = prompt + _messages(values["completion"], "completion", row), len(prompt)
    elif shape == "roles":
        turns = [{"role": r, "content": _text(values[r], r, row)} for r in ("user", "assistant")]
        system = [{"role": "system", "content": _string(values["system"], "system", row)}] if values["system"] else []
        messages, start = system + turns, 0
    else:
        messages, start = _messages(values["messages"], "messages", row), 0
    _check_answers(messages, start, row)
    return Chat(messages, _tools(values.get("tools"), row), start)


def _completion(values: dict[str, Any], row: Row) -> Completion:
    if isinstance(values["completion"], list):
        raise RowError(row.where, "completion is a list of messages, so prompt must be one too", _got(values))
    return Completion(_string(values["prompt"], "prompt", row), _text(values["completion"], "completion", row))


def _got(values: dict[str, Any]) -> str:
    return f"got prompt: {_kind(values['prompt'])}, completion: {_kind(values['completion'])}"


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _string(value: Any, name: str, row: Row) -> str:
    if not isinstance(value, str):
        raise RowError(row.where, f"{name} must be a string, got {_kind(value)}", advice="quote the value")
    return value


def _text(value: Any, name: str, row: Row) -> str:
    if not _string(value, name, row).strip():
        raise RowError(row.where, f"empty {name}", advice="there is nothing to learn; remove the row")
    return value


def _messages(value: Any, name: str, row: Row) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise RowError(row.where, f"{name} must be a list of messages, got {_kind(value)}")
    return [_message(message, f"{name}[{index}]", row) for index, message in enumerate(value)]


def _message(message: Any, name: str, row: Row) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RowError(row.where, "a message must be an object", f"{name} is a {_kind(message)}")
    role = message.get("role")
    if role not in ROLES:
        advice = f"known roles: {', '.join(ROLES)}"
        raise RowError(row.where, "unknown role", f"{name}.role is {role!r}", advice, quoted=str(message))
    cleaned = {key: item for key, item in message.items() if item is not None}
    if "tool_calls" in cleaned:
        cleaned["tool_calls"] = _tool_calls(cleaned["tool_calls"], name, row)
        if not cleaned["tool_calls"]:
            del cleaned["tool_calls"]
    content = cleaned.get("content")
    if content is None and cleaned.get("tool_calls"):
        cleaned["content"] = ""  # most templates concatenate content without looking whether it is there
    else:
        cleaned["content"] = _content(content, name, row)
    return cleaned


def _content(content: Any, name: str, row: Row) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError(row.where, f"content must be a string, got {_kind(content)}", name, "quote the value")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else _kind(part)
        if kind != "text":
            word = str(kind).removesuffix("_url")
            raise RowError(row.where, f"{word} part in a text-only recipe", name, "remove the part or the row")
        texts.append(_string(part.get("text"), "text of a content part", row))
    return "".join(texts)


def _tool_calls(calls: Any, name: str, row: Row) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise RowError(row.where, "tool_calls must be a list of objects", name)
    return [_tool_call(call, f"{name}.tool_calls[{index}]", row) for index, call in enumerate(calls)]


def _tool_call(call: dict[str, Any], name: str, row: Row) -> dict[str, Any]:
    """The call with its arguments as an object: given as JSON text, templates raise on it or encode it twice."""
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError(row.where, "a tool call needs a function name", name)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise RowError(row.where, "tool call arguments are not valid JSON", f"{name}: {error}") from None
    if not isinstance(arguments, dict):
        raise RowError(row.where, "tool call arguments must be an object", f"{name}: got {_kind(arguments)}")
    changed = {**function, "arguments": arguments}
    return {**call, "function": changed} if "function" in call else changed


def _tools(tools: Any, row: Row) -> list[Any] | None:
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise RowError(row.where, "tools is not valid JSON", str(error)) from None
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RowError(row.where, "tools must be a list of objects", f"got {_kind(tools)}")
    return tools


def _check_answers(messages: list[dict[str, Any]], start: int, row: Row) -> None:
    answers = [(i, m) for i, m in enumerate(messages) if i >= start and m["role"] == "assistant"]
    if not answers:
        roles = ", ".join(m["role"] for m in messages) or "none"
        raise RowError(row.where, "no assistant message to learn", f"roles: {roles}", "add one or remove the row")
    for index, message in answers:
        if not message["content"].strip() and not message.get("tool_calls"):
            raise RowError(row.where, "empty assistant message", f"message {index}", "there is nothing to learn in it")
