"""Rows of every shape as prompts, with their answers or without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from toolkit.chat.asking import Asking, asking_of
from toolkit.chat.questions import Question, read_questions
from toolkit.config import DataConfig
from toolkit.data.template import CHATML
from toolkit.errors import UserError

USER, ANSWER = {"role": "user", "content": "to"}, {"role": "assistant", "content": "the"}
SYSTEM = {"role": "system", "content": "in"}
PREFIX = "<|im_start|>user\nto<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def asking(tiny_model: Path) -> Asking:
    return Asking(AutoTokenizer.from_pretrained(tiny_model))


def read(folder: Path, asking: Asking, *rows: dict[str, Any], columns: dict[str, str] | None = None) -> list[Question]:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return read_questions(file, asking, columns, lambda message: None)


CHATS: dict[str, tuple[dict[str, Any], str | None]] = {
    "messages": ({"messages": [USER, ANSWER]}, "the"),
    "messages, open": ({"messages": [USER]}, None),
    "messages, not to be learnt": ({"messages": [USER, {**ANSWER, "train": False}]}, "the"),
    "conversations": ({"conversations": [{"from": "human", "value": "to"}, {"from": "gpt", "value": "the"}]}, "the"),
    "conversations, open": ({"conversations": [{"from": "human", "value": "to"}]}, None),
    "prompt as messages": ({"prompt": [USER], "completion": [ANSWER]}, "the"),
    "prompt as messages, open": ({"prompt": [USER]}, None),
    "prompt alone": ({"prompt": "to"}, None),
    "alpaca": ({"instruction": "to", "output": "the"}, "the"),
    "alpaca, open": ({"instruction": "to"}, None),
    "alpaca, empty answer": ({"instruction": "to", "input": "", "output": ""}, None),
    "preference": ({"prompt": [USER], "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "a"}]}, "the"),
}


@pytest.mark.parametrize("name", CHATS)
def test_a_row_is_asked_through_the_template(name: str, tmp_path: Path, asking: Asking) -> None:
    row, reference = CHATS[name]
    [question] = read(tmp_path, asking, row)
    assert asking.tokenizer.decode(question.ids) == PREFIX
    assert question.prompt == [USER]
    assert question.reference == reference
    assert question.row == 1


TEXTS: dict[str, tuple[dict[str, Any], str | None]] = {
    "text": ({"text": "to the"}, None),
    "prompt and completion": ({"prompt": "to the", "completion": " a"}, " a"),
    "preference in text": ({"prompt": "to the", "chosen": " a", "rejected": " b"}, " a"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_continued_as_it_is(name: str, tmp_path: Path, asking: Asking) -> None:
    row, reference = TEXTS[name]
    [question] = read(tmp_path, asking, row)
    assert (question.prompt, question.reference) == ("to the", reference)
    assert asking.tokenizer.decode(question.ids) == "to the"


def test_a_prompt_alone_is_text_for_a_model_without_template(tmp_path: Path, asking: Asking) -> None:
    asking.tokenizer.chat_template = None
    [question] = read(tmp_path, asking, {"prompt": "to"})
    assert asking.tokenizer.decode(question.ids) == "to"
    with pytest.raises(UserError, match=r"rows\.jsonl:1: the model has no chat template"):
        read(tmp_path, asking, {"messages": [USER]})


@pytest.mark.parametrize("row", [{"q": "to", "a": "the"}, {"q": "to"}, {"q": "to", "a": None}])
def test_the_columns_of_the_run(tmp_path: Path, asking: Asking, row: dict[str, Any]) -> None:
    [question] = read(tmp_path, asking, row, columns={"user": "q", "assistant": "a"})
    assert asking.tokenizer.decode(question.ids) == PREFIX
    assert question.reference == row.get("a")


def test_the_runs_columns_do_not_hide_what_a_file_of_another_shape_has(tmp_path: Path, asking: Asking) -> None:
    [question] = read(tmp_path, asking, {"messages": [USER]}, columns={"user": "q", "assistant": "a"})
    assert question.prompt == [USER]


def test_rows_keep_their_line_and_their_history(tmp_path: Path, asking: Asking) -> None:
    found = read(tmp_path, asking, {"messages": [USER]}, {"messages": [SYSTEM, USER, ANSWER, USER, ANSWER]})
    assert [question.row for question in found] == [1, 2]
    assert found[1].prompt == [SYSTEM, USER, ANSWER, USER]
    assert asking.tokenizer.decode(found[1].ids).count("<|im_start|>") == 5


def test_control_tokens_in_a_message_are_text(tmp_path: Path, asking: Asking) -> None:
    [question] = read(tmp_path, asking, {"prompt": "to<|im_end|>"})
    end = asking.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert question.ids.count(end) == 1
    [acting] = read(tmp_path, Asking(asking.tokenizer, control_tokens="token"), {"prompt": "to<|im_end|>"})
    assert acting.ids.count(end) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "to"}, "no known shape: columns found: question; accepted: prompt | messages"),
        ({"messages": []}, "rows.jsonl:1"),
        ({"prompt": ""}, "rows.jsonl:1: empty prompt"),
        ({"text": " "}, "rows.jsonl:1: empty text"),
        ({"messages": [{"role": "robot", "content": "to"}]}, "unknown role"),
    ],
)
def test_what_cannot_be_asked_is_named(tmp_path: Path, asking: Asking, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as info:
        read(tmp_path, asking, row)
    assert message in str(info.value)
    assert "\n" not in str(info.value)


def test_a_system_text_goes_before_each_conversation(tmp_path: Path, asking: Asking) -> None:
    told: list[str] = []
    spoken = asking_of(asking.tokenizer, DataConfig(), "in", told.append)
    [question] = read(tmp_path, spoken, {"messages": [USER]})
    assert asking.tokenizer.decode(question.ids) == "<|im_start|>system\nin<|im_end|>\n" + PREFIX
    assert not told
    for row, message in (({"messages": [SYSTEM, USER]}, "system message of its own"), ({"text": "to"}, "no place")):
        with pytest.raises(UserError, match=message):
            read(tmp_path, spoken, row)


def test_a_system_text_is_folded_where_the_template_refuses_it(asking: Asking) -> None:
    refuses = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    asking.tokenizer.chat_template = refuses + CHATML
    told: list[str] = []
    spoken = asking_of(asking.tokenizer, DataConfig(), "in", told.append)
    assert "user\nin\n\nto<|im_end|>" in asking.tokenizer.decode(spoken.chat([USER]))
    assert len(told) == 1
    run = asking_of(asking.tokenizer, DataConfig(system_policy="fold", control_tokens="token"), None, told.append)
    assert (run.system_policy, run.control_tokens) == ("fold", "token")
    asking.tokenizer.chat_template = None
    with pytest.raises(UserError, match="--system"):
        asking_of(asking.tokenizer, DataConfig(), "in", told.append)
