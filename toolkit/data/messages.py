"""Checks that turn what people write as a conversation into messages a chat template understands."""

from __future__ import annotations

import json
from typing import Any

from toolkit.data.examples import Chat, Message
from toolkit.data.rows import Row, RowError

ROLES = ("system", "user", "assistant", "tool", "developer")
# What ShareGPT files call the roles.
TAGS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "assistant",
}
# What a message may say about its own supervision; no template ever sees these.
_FLAGS = ("train", "weight")


def kind_of(value: Any) -> str:
    """The name people know a value's type by."""
    return "null" if value is None else type(value).__name__


def string(value: Any, name: str, row: Row) -> str:
    """`value`, which must be a string. Numbers are not converted: "00123" and 123 are different answers."""
    if not isinstance(value, str):
        raise RowError(row.where, f"{name} must be a string, got {kind_of(value)}", advice="quote the value")
    return value


def text(value: Any, name: str, row: Row) -> str:
    """`value`, which must be a string with something in it."""
    if not string(value, name, row).strip():
        raise RowError(row.where, f"empty {name}", advice="there is nothing to learn; remove the row")
    return value


def conversation(value: Any, name: str, row: Row) -> list[Message]:
    """The messages in `value`, each checked. Supervision flags are still in them; `build_chat` reads them."""
    if not isinstance(value, list):
        raise RowError(row.where, f"{name} must be a list of messages, got {kind_of(value)}")
    return [_message(message, f"{name}[{index}]", row) for index, message in enumerate(value)]


def build_chat(messages: list[Message], tools: Any, row: Row, *, start: int, train_on: str) -> Chat:
    """The conversation with what is learnt of it: assistant messages from index `start` on, by `data.train_on` and by
    each message's own `train: false` or `weight: 0`."""
    flags = [_flag(message, index, row) for index, message in enumerate(messages)]
    bare = [{key: item for key, item in message.items() if key not in _FLAGS} for message in messages]
    answers = [i for i, m in enumerate(bare) if i >= start and m["role"] == "assistant"]
    if not answers:
        roles = ", ".join(m["role"] for m in bare) or "none"
        raise RowError(row.where, "no assistant message to learn", f"roles: {roles}", "add one or remove the row")
    for index in answers:
        if not bare[index]["content"].strip() and not bare[index].get("tool_calls"):
            raise RowError(row.where, "empty assistant message", f"message {index}", "there is nothing to learn in it")
    checked = checked_tools(tools, row)
    if train_on == "all":
        if False in flags:
            raise RowError(row.where, "train: false in a message", advice="it cannot be kept with data.train_on: all")
        return Chat(bare, checked, None)
    wanted = answers[-1:] if train_on == "last_assistant" else answers
    learnt = tuple(i in wanted and flags[i] is not False for i in range(len(bare)))
    if not any(learnt):
        raise RowError(row.where, "no message is learnt", "each has train: false or weight: 0", "remove the row")
    return Chat(bare, checked, learnt)


def _flag(message: Message, index: int, row: Row) -> bool | None:
    """What a message says of itself: True, False or nothing."""
    given = {name: message[name] for name in _FLAGS if name in message}
    if any(isinstance(value, bool) != (name == "train") or value not in (0, 1) for name, value in given.items()):
        detail = f"message {index}: {given}"
        raise RowError(row.where, "train must be true or false and weight 0 or 1", detail, "correct it or remove it")
    values = {bool(value) for value in given.values()}
    if len(values) > 1:
        raise RowError(row.where, "train and weight of a message disagree", f"message {index}: {given}", "keep one")
    if values == {True} and message["role"] != "assistant" and given.get("train"):
        advice = "only assistant messages are learnt; data.train_on: all learns everything"
        raise RowError(row.where, f"train: true in a {message['role']} message", f"message {index}", advice)
    return next(iter(values), None)


def _message(message: Any, name: str, row: Row) -> Message:
    if not isinstance(message, dict):
        raise RowError(row.where, "a message must be an object", f"{name} is a {kind_of(message)}")
    if "from" in message and "role" not in message:
        message = _from_share_gpt(message, name, row)
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


def _from_share_gpt(message: Message, name: str, row: Row) -> Message:
    tag = message["from"]
    if tag not in TAGS:
        advice = f"known: {', '.join(TAGS)}"
        raise RowError(row.where, "unknown role", f"{name}.from is {tag!r}", advice, quoted=str(message))
    rest = {key: item for key, item in message.items() if key not in ("from", "value")}
    if tag != "function_call":
        return {"role": TAGS[tag], "content": message.get("value"), **rest}
    call = _parsed(message.get("value"), "function_call", name, row)
    calls = call if isinstance(call, list) else [call]
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": c} for c in calls], **rest}


def _content(content: Any, name: str, row: Row) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError(row.where, f"content must be a string, got {kind_of(content)}", name, "quote the value")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else kind_of(part)
        if kind != "text":
            word = str(kind).removesuffix("_url")
            raise RowError(row.where, f"{word} part in a text-only recipe", name, "remove the part or the row")
        texts.append(string(part.get("text"), "text of a content part", row))
    return "".join(texts)


def _tool_calls(calls: Any, name: str, row: Row) -> list[Message]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise RowError(row.where, "tool_calls must be a list of objects", name)
    return [_tool_call(call, f"{name}.tool_calls[{index}]", row) for index, call in enumerate(calls)]


def _tool_call(call: Message, name: str, row: Row) -> Message:
    """The call with its arguments as an object: given as JSON text, templates raise on it or encode it twice."""
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError(row.where, "a tool call needs a function name", name)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _parsed(arguments, "tool call arguments", name, row)
    if not isinstance(arguments, dict):
        raise RowError(row.where, "tool call arguments must be an object", f"{name}: got {kind_of(arguments)}")
    changed = {**function, "arguments": arguments}
    return {**call, "function": changed} if "function" in call else changed


def _parsed(value: Any, what: str, name: str, row: Row) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        verb = "are" if what.endswith("s") else "is"
        raise RowError(row.where, f"{what} {verb} not valid JSON", f"{name}: {error}") from None


def checked_tools(tools: Any, row: Row) -> list[Any] | None:
    """The `tools` column: a list of objects, or that list as JSON text; None where there is nothing in it."""
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise RowError(row.where, "tools is not valid JSON", str(error)) from None
    if not tools or (isinstance(tools, str) and not tools.strip()):
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RowError(row.where, "tools must be a list of objects", f"got {kind_of(tools)}")
    return tools
