"""From a row to an example: shapes by column, and every check with the line it names."""

from __future__ import annotations

from typing import Any

import pytest

from toolkit.data.examples import Chat, Completion, Text
from toolkit.data.rows import Row, RowError
from toolkit.data.shapes import detect_shape, to_example, used_columns
from toolkit.errors import UserError

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "r"}


def example(values: dict[str, Any], mapping: dict[str, str] | None = None) -> Chat | Completion | Text:
    return to_example(Row(values, "d.jsonl", 3), detect_shape(values, mapping), mapping)


def reason(values: dict[str, Any], mapping: dict[str, str] | None = None) -> str:
    with pytest.raises(RowError) as info:
        example(values, mapping)
    assert str(info.value).startswith("d.jsonl:3: ")
    assert "\n" not in str(info.value)
    return str(info.value).removeprefix("d.jsonl:3: ")


@pytest.mark.parametrize(
    ("columns", "shape"),
    [
        (["messages", "id"], "messages"),
        (["prompt", "completion"], "prompt+completion"),
        (["text", "label"], "text"),
        (["prompt", "text"], "text"),
        (["messages", "prompt", "completion", "text"], "messages"),
    ],
)
def test_shape_by_columns(columns: list[str], shape: str) -> None:
    assert detect_shape(columns) == shape


def test_shape_by_mapping() -> None:
    assert detect_shape(["q", "a"], {"prompt": "q", "completion": "a"}) == "prompt+completion"
    assert detect_shape(["q", "completion"], {"prompt": "q"}) == "prompt+completion"
    assert detect_shape(["messages", "q", "a"], {"user": "q", "assistant": "a"}) == "roles"
    assert detect_shape(["messages", "body"], {"text": "body"}) == "text"


def test_unknown_shape_says_what_was_found_and_what_fits() -> None:
    with pytest.raises(UserError) as info:
        detect_shape(["question", "answer"])
    assert "columns found: answer, question" in str(info.value)
    assert "messages | prompt+completion | text" in str(info.value)
    with pytest.raises(UserError, match="did you mean 'prompt' by 'promt'"):
        detect_shape(["promt", "completion"])
    with pytest.raises(UserError, match="did you mean 'messages' by 'Message'"):
        detect_shape(["Message"])


def test_mapping_is_checked() -> None:
    with pytest.raises(
        UserError, match=r"data\.columns\.prompt: column 'question' does not exist; columns found: a, q"
    ):
        detect_shape(["q", "a"], {"prompt": "question", "completion": "a"})
    with pytest.raises(UserError, match=r"data\.columns: 'promt' is not a name we know; known: .*prompt"):
        detect_shape(["q", "a"], {"promt": "q"})


def test_used_columns() -> None:
    assert used_columns("prompt+completion", {"prompt": "q"}) == {"q", "completion", "tools"}
    assert used_columns("text") == {"text"}


def test_examples() -> None:
    assert example({"text": "a", "n": 1}) == Text("a")
    assert example({"prompt": "", "completion": "b"}) == Completion("", "b")
    assert example({"messages": [USER, ANSWER], "x": 1}) == Chat([USER, ANSWER], None, 0)
    assert example({"prompt": [USER, ANSWER, USER], "completion": [ANSWER]}) == Chat(
        [USER, ANSWER, USER, ANSWER], None, 3
    )
    mapping = {"user": "q", "assistant": "a", "system": "s"}
    system = {"role": "system", "content": "be"}
    assert example({"q": "q", "a": "r", "s": "be"}, mapping) == Chat([system, USER, ANSWER], None, 0)
    assert example({"q": "q", "a": "r", "s": ""}, mapping) == Chat([USER, ANSWER], None, 0)
    assert example({"Q": "x", "A": "y"}, {"prompt": "Q", "completion": "A"}) == Completion("x", "y")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"prompt": "2+2", "completion": 4}, "completion must be a string, got int"),
        ({"prompt": 2, "completion": "x"}, "prompt must be a string, got int"),
        ({"prompt": "a", "completion": None}, "completion must be a string, got null"),
        ({"text": 1.5}, "text must be a string, got float"),
        ({"messages": [USER, {"role": "assistant", "content": 4}]}, "content must be a string, got int (messages[1])"),
        ({"messages": "hello"}, "messages must be a list of messages, got str"),
        ({"messages": ["hello"]}, "a message must be an object (messages[0] is a str)"),
        ({"prompt": "a", "completion": [ANSWER]}, "completion is a list of messages, so prompt must be one too"),
        ({"prompt": [USER], "completion": "b"}, "prompt is a list of messages, so completion must be one too"),
        ({"prompt": "a", "completion": " \n"}, "empty completion"),
        ({"text": ""}, "empty text"),
        ({"messages": [USER, {"role": "assistant", "content": " "}]}, "empty assistant message (message 1)"),
        ({"messages": [USER, {"role": "assistant"}]}, "content must be a string, got null"),
        ({"messages": [USER]}, "no assistant message to learn (roles: user)"),
        ({"messages": []}, "no assistant message to learn (roles: none)"),
        ({"prompt": [USER, ANSWER], "completion": [USER]}, "no assistant message to learn"),
        ({"messages": [USER, ANSWER], "tools": "[{"}, "tools is not valid JSON"),
        ({"messages": [USER, ANSWER], "tools": {"a": 1}}, "tools must be a list of objects"),
    ],
)
def test_rows_that_are_wrong(values: dict[str, Any], expected: str) -> None:
    assert reason(values).startswith(expected)


def test_unknown_role() -> None:
    message = reason({"messages": [{"role": "bot", "content": "x" * 900}, ANSWER]})
    assert message.startswith(
        "unknown role (messages[0].role is 'bot'); known roles: system, user, assistant, tool, dev"
    )
    assert "x" * 201 not in message
    assert reason({"messages": [{"from": "human", "value": "q"}]}).startswith("unknown role")


def test_later_row_without_the_columns() -> None:
    row = Row({"prompt": "a", "answer": "b"}, "d.csv", 9)
    with pytest.raises(RowError, match=r"d\.csv:9: column 'completion' is missing or null \(columns: prompt, answer\)"):
        to_example(row, "prompt+completion")


def test_empty_history_in_the_prompt_is_no_error() -> None:
    empty = {"role": "assistant", "content": ""}
    assert example({"prompt": [USER, empty, USER], "completion": [ANSWER]}).supervise_from == 3


def test_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "hey "}, {"type": "text", "text": "you"}]
    assert example({"messages": [{"role": "user", "content": parts}, ANSWER]}).messages[0]["content"] == "hey you"
    image = [*parts, {"type": "image_url", "image_url": {"url": "x"}}]
    message = reason({"messages": [{"role": "user", "content": image}, ANSWER]})
    assert message.startswith("image part in a text-only recipe (messages[0])")


def tool_turn(arguments: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": arguments}}],
    }


def test_tool_call_arguments() -> None:
    as_text = example({"messages": [USER, tool_turn('{"city": "Oslo"}')]})
    as_object = example({"messages": [USER, {**tool_turn({"city": "Oslo"}), "content": None}]})
    assert as_text == as_object
    assert as_text.messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    assert as_text.messages[1]["content"] == ""
    flat = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": '{"a": 1}'}]}
    assert example({"messages": [USER, flat]}).messages[1]["tool_calls"] == [{"name": "f", "arguments": {"a": 1}}]
    bad = reason({"messages": [USER, tool_turn("{city:")]})
    assert bad.startswith("tool call arguments are not valid JSON (messages[1].tool_calls[0]")
    assert reason({"messages": [USER, tool_turn("[1]")]}).startswith("tool call arguments must be an object")
    assert "needs a function name" in reason({"messages": [USER, {**ANSWER, "tool_calls": [{"id": "1"}]}]})
    assert "must be a list" in reason({"messages": [USER, {**ANSWER, "tool_calls": "f()"}]})


def test_the_row_is_not_changed() -> None:
    turn = tool_turn('{"a": 1}')
    example({"messages": [USER, turn]})
    assert turn == tool_turn('{"a": 1}')


def test_tools_are_passed_on() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert example({"messages": [USER, ANSWER], "tools": tools}).tools == tools
    assert example({"messages": [USER, ANSWER], "tools": '[{"name": "f"}]'}).tools == [{"name": "f"}]
    assert example({"messages": [USER, ANSWER], "tools": []}).tools is None


def test_reasons_can_be_counted() -> None:
    reasons = set()
    for text in (" ", ""):
        with pytest.raises(RowError) as info:
            to_example(Row({"prompt": text, "completion": text}, "d", len(text)), "prompt+completion")
        reasons.add(info.value.reason)
    assert reasons == {"empty completion"}
