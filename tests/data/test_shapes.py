"""From a row to an example: shapes by column, and every check with the line it names."""

from __future__ import annotations

from typing import Any

import pytest

from toolkit.data.examples import Chat, Completion, Judged, Preference, Text
from toolkit.data.rows import Row, RowError
from toolkit.data.shapes import JUDGEMENTS, SHAPES, check_train_on, detect_shape, to_example, used_columns
from toolkit.errors import UserError

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "r"}


def example(
    values: dict[str, Any], mapping: dict[str, str] | None = None, train_on: str = "assistant", accepted=SHAPES
):
    return to_example(Row(values, "d.jsonl", 3), detect_shape(values, mapping, accepted), mapping, train_on)


def reason(values: dict[str, Any], mapping: dict[str, str] | None = None, train_on: str = "assistant") -> str:
    with pytest.raises(RowError) as info:
        example(values, mapping, train_on)
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
    assert detect_shape(columns).name == shape


def test_shape_by_mapping() -> None:
    assert detect_shape(["q", "a"], {"prompt": "q", "completion": "a"}).name == "prompt+completion"
    assert detect_shape(["q", "completion"], {"prompt": "q"}).name == "prompt+completion"
    assert detect_shape(["messages", "q", "a"], {"user": "q", "assistant": "a"}).name == "user+assistant"
    assert detect_shape(["messages", "body"], {"text": "body"}).name == "text"


def test_unknown_shape_says_what_was_found_and_what_fits() -> None:
    with pytest.raises(UserError) as info:
        detect_shape(["question", "answer"])
    assert "columns found: answer, question" in str(info.value)
    assert "messages | conversations | prompt+completion | instruction+output | text" in str(info.value)
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
    assert used_columns(SHAPES["prompt+completion"], {"prompt": "q"}) == {"q", "completion", "tools"}
    assert used_columns(SHAPES["text"]) == {"text"}


def test_examples() -> None:
    assert example({"text": "a", "n": 1}) == Text("a")
    assert example({"prompt": "", "completion": "b"}) == Completion("", "b")
    assert example({"messages": [USER, ANSWER], "x": 1}) == Chat([USER, ANSWER], None, (False, True))
    assert example({"prompt": [USER, ANSWER, USER], "completion": [ANSWER]}) == Chat(
        [USER, ANSWER, USER, ANSWER], None, (False, False, False, True)
    )
    mapping = {"user": "q", "assistant": "a", "system": "s"}
    system = {"role": "system", "content": "be"}
    assert example({"q": "q", "a": "r", "s": "be"}, mapping) == Chat([system, USER, ANSWER], None, (False, False, True))
    assert example({"q": "q", "a": "r", "s": ""}, mapping) == Chat([USER, ANSWER], None, (False, True))
    assert example({"Q": "x", "A": "y"}, {"prompt": "Q", "completion": "A"}) == Completion("x", "y")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"prompt": "2+2", "completion": 4}, "completion must be a string, got int"),
        ({"prompt": 2, "completion": "x"}, "prompt must be a string, got int"),
        ({"prompt": "a", "completion": None}, "column 'completion' is missing or null"),
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
    assert reason({"conversations": [{"from": "bot", "value": "q"}]}).startswith(
        "unknown role (conversations[0].from is 'bot'); known: human, user, gpt"
    )


def test_later_row_without_the_columns() -> None:
    row = Row({"prompt": "a", "answer": "b"}, "d.csv", 9)
    with pytest.raises(RowError, match=r"d\.csv:9: column 'completion' is missing or null \(columns: prompt, answer\)"):
        to_example(row, SHAPES["prompt+completion"])


def test_empty_history_in_the_prompt_is_no_error() -> None:
    empty = {"role": "assistant", "content": ""}
    assert example({"prompt": [USER, empty, USER], "completion": [ANSWER]}).learnt == (False, False, False, True)


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
            to_example(Row({"prompt": text, "completion": text}, "d", len(text)), SHAPES["prompt+completion"])
        reasons.add(info.value.reason)
    assert reasons == {"empty completion"}


def test_share_gpt_is_its_messages_twin() -> None:
    """A18."""
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "r"}]
    assert example({"conversations": turns}) == example({"messages": [USER, ANSWER]})
    system = {"role": "system", "content": "be"}
    assert example({"conversations": turns, "system": "be"}) == example({"messages": [system, USER, ANSWER]})
    call = {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'}
    result = {"from": "observation", "value": "2"}
    found = example({"conversations": [turns[0], call, result, turns[1]], "tools": '[{"name": "f"}]'})
    assert [m["role"] for m in found.messages] == ["user", "assistant", "tool", "assistant"]
    assert found.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert found.learnt == (False, True, False, True)
    assert reason({"conversations": [turns[0], {**call, "value": "f(1)"}]}).startswith(
        "function_call is not valid JSON"
    )


def test_alpaca() -> None:
    row = {"instruction": "Add.", "input": "1 2", "output": "3"}
    asked = {"role": "user", "content": "Add.\n\n1 2"}
    answer = {"role": "assistant", "content": "3"}
    assert example(row) == Chat([asked, answer], None, (False, True))
    for empty in ("", None):
        assert example({**row, "input": empty}).messages[0]["content"] == "Add."
    full = {**row, "system": "be", "history": [["q", "r"]]}
    messages = [{"role": "system", "content": "be"}, USER, ANSWER, asked, answer]
    assert example(full) == Chat(messages, None, (False, False, True, False, True))
    assert example(full, train_on="completion").learnt == (False, False, False, False, True)
    assert reason({**row, "output": ""}).startswith("empty output")
    assert reason({**row, "input": 3}).startswith("input must be a string, got int")
    assert reason({**row, "history": ["q"]}).startswith("history must be a list of [question, answer]")


def test_train_on() -> None:
    messages = [USER, ANSWER, USER, ANSWER]
    assert example({"messages": messages}, train_on="last_assistant").learnt == (False, False, False, True)
    assert example({"messages": messages}, train_on="all").learnt is None
    assert example({"prompt": "a", "completion": "b"}, train_on="all") == Completion("a", "b", learn_prompt=True)
    chat = {"prompt": messages[:3], "completion": messages[3:]}
    assert example(chat, train_on="completion").learnt == (False, False, False, True)
    with pytest.raises(UserError, match="completion means nothing for rows of shape messages; use one of assistant"):
        check_train_on(SHAPES["messages"], "completion")


def test_a_message_says_that_it_is_not_learnt() -> None:
    off, on = {**ANSWER, "train": False}, {**ANSWER, "weight": 1}
    found = example({"messages": [USER, off, USER, on]})
    assert found.learnt == (False, False, False, True)
    assert found.messages == [USER, ANSWER, USER, ANSWER]  # no template sees the flags
    assert example({"messages": [USER, {**ANSWER, "weight": 0}, {**USER, "weight": 0}, on]}).learnt == found.learnt
    assert reason({"messages": [USER, off]}).startswith("no message is learnt")
    assert reason({"messages": [USER, {**ANSWER, "train": "no"}]}).startswith("train must be true or false")
    assert reason({"messages": [USER, {**ANSWER, "weight": 0.5}]}).startswith(
        "train must be true or false and weight 0"
    )
    assert reason({"messages": [USER, {**ANSWER, "weight": 0, "train": True}]}).startswith("train and weight")
    assert reason({"messages": [{**USER, "train": True}, ANSWER]}).startswith("train: true in a user message")
    assert reason({"messages": [USER, off]}, train_on="all").startswith("train: false in a message")


OTHER = {"role": "assistant", "content": "s"}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [OTHER]},
        {"prompt": [USER], "chosen": [USER, ANSWER], "rejected": [USER, OTHER]},
        {"prompt": "q", "chosen": [USER, ANSWER], "rejected": [USER, OTHER]},
        {"prompt": "q", "chosen": [ANSWER], "rejected": [OTHER]},
        {"chosen": [USER, ANSWER], "rejected": [USER, OTHER]},
    ],
)
def test_preference_pairs_share_their_prompt(row: dict[str, Any]) -> None:
    chat = (False, True)
    assert example(row) == Preference(Chat([USER, ANSWER], None, chat), Chat([USER, OTHER], None, chat))


def test_preference_pairs_of_text() -> None:
    row = {"prompt": "Q: ", "chosen": "yes ", "rejected": "no"}
    assert example(row) == Preference(Completion("Q: ", "yes "), Completion("Q: ", "no"))
    with pytest.raises(UserError, match=r"this recipe does not learn from chosen\+rejected rows"):
        detect_shape(row)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"chosen": [USER, ANSWER], "rejected": [USER, ANSWER, USER, OTHER]}, "chosen is a prefix of rejected"),
        ({"chosen": [USER, ANSWER, USER, OTHER], "rejected": [USER, ANSWER]}, "rejected is a prefix of chosen"),
        ({"chosen": [USER, ANSWER], "rejected": [USER, ANSWER]}, "chosen equals rejected"),
        ({"prompt": "q", "chosen": "a", "rejected": "a"}, "chosen equals rejected"),
        ({"chosen": "yes ", "rejected": "no"}, "chosen and rejected are text without a prompt"),
        ({"chosen": [USER, ANSWER], "rejected": "no"}, "chosen and rejected must both be text"),
        ({"chosen": [ANSWER], "rejected": [OTHER]}, "chosen and rejected share no prompt"),
        ({"prompt": "z", "chosen": [USER, ANSWER], "rejected": [USER, OTHER]}, "chosen and rejected do not go on"),
    ],
)
def test_preference_pairs_that_are_wrong(row: dict[str, Any], expected: str) -> None:
    """E13."""
    assert reason(row).startswith(expected)


def test_chosen_equals_rejected_is_said_before_prefix() -> None:
    assert reason({"prompt": [USER], "chosen": [ANSWER], "rejected": [ANSWER]}).startswith("chosen equals rejected")


def test_judged_answers() -> None:
    shape = detect_shape(["prompt", "completion", "label"], accepted=JUDGEMENTS)
    assert shape is SHAPES["prompt+completion+label"]
    for label, desirable in ((True, True), (False, False), ("true", True), (0, False), (" False ", False)):
        example = to_example(Row({"prompt": "q", "completion": "a", "label": label}, "f", 3), shape)
        assert example == Judged(Completion("q", "a"), desirable)
    chat = to_example(Row({"prompt": [USER], "completion": [ANSWER], "label": True}, "f", 3), shape)
    assert chat.answer.learnt == (False, True)
    for label in ("good", 2, 0.5, []):
        with pytest.raises(RowError, match=r"f:3.*label must be true or false"):
            to_example(Row({"prompt": "q", "completion": "a", "label": label}, "f", 3), shape)
