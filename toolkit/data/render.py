"""Rendering a conversation with a chat template, in the form of messages that the template takes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from toolkit.data.examples import Message

Span = tuple[int, int]


@dataclass(frozen=True)
class Dialect:
    """What a template wants of messages beyond the common form.

    parts: contents as lists of parts, as templates of vision models do; json_arguments: the arguments of tool calls as
    JSON text, not as objects.
    """

    parts: bool = False
    json_arguments: bool = False


PLAIN = Dialect()


def render_as(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    messages: list[Message],
    tools: list[Any] | None,
    dialect: Dialect,
    prompt: bool = False,
) -> str:
    """The conversation as text; with `prompt`, followed by the template's generation prompt."""
    spoken = messages if dialect == PLAIN else [_spoken(message, dialect) for message in messages]
    text = tokenizer.apply_chat_template(
        spoken, tools=tools, chat_template=template, tokenize=False, add_generation_prompt=prompt
    )
    assert isinstance(text, str)
    return text


def render_marks_as(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    messages: list[Message],
    tools: list[Any] | None,
    dialect: Dialect,
) -> tuple[str, list[Span]]:
    """The conversation as text, and the character ranges within `{% generation %}` marks."""
    options: dict[str, Any] = {"return_assistant_tokens_mask": True, **tokenizer.special_tokens_map}
    spoken = [_spoken(message, dialect) for message in messages]
    # Declared to return a string, it returns the texts and, for each, its ranges.
    rendered: Any = render_jinja_template([spoken], tools=tools, chat_template=template, **options)
    spans: list[Span] = []
    for start, end in rendered[1][0]:
        if spans and start == spans[-1][1]:  # one turn in two marks, such as its text and its end
            start = spans.pop()[0]
        spans.append((start, end))
    return rendered[0][0], spans


def _spoken(message: Message, dialect: Dialect) -> Message:
    if dialect.parts and isinstance(message.get("content"), str):
        message = {**message, "content": [{"type": "text", "text": message["content"]}]}
    if dialect.json_arguments and message.get("tool_calls"):
        message = {**message, "tool_calls": [_with_json(call) for call in message["tool_calls"]]}
    return message


def _with_json(call: Message) -> Message:
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        function = {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {**call, "function": function} if "function" in call else function


def common_prefix(a: str, b: str) -> int:
    """The number of leading characters `a` and `b` share, by bisection: comparing slices is fast, a loop is not."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
