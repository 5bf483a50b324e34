"""Masks under the chat templates of real models, which the package `trl` ships."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.data.real_templates import CASES, ONLY_MARKED, STYLES, expected, folder, source, tokenizer_for
from tests.data.twin_templates import BEFORE, REASONS, differences, marks, runs, without_after
from toolkit.data.chat import IGNORED, encode, turn_end_ids
from toolkit.data.examples import Chat
from toolkit.data.rows import RowError
from toolkit.data.template import template_profile

FOLDER = folder()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="the package trl, which ships the templates, is not installed")
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja")) if FOLDER else []
TWINS = [name for name in NAMES if f"{name}_training" in NAMES]
MARKED = [name for name in NAMES if name.endswith("_training") or name in ONLY_MARKED]


def chat_of(case: str) -> Chat:
    messages, tools = CASES[case]
    return Chat(messages, tools, tuple(message["role"] == "assistant" for message in messages))


def learnt(name: str, case: str) -> list[str] | None:
    """The decoded texts that are learnt; None where the row is refused, which is the only error there may be."""
    tokenizer = tokenizer_for(source(name))
    try:
        encoded = encode(chat_of(case), tokenizer, where="d:1")
    except RowError as error:
        refusal = str(error)
        if not refusal.startswith("d:1: the chat template ") or "\n" in refusal:
            raise
        return None
    assert not encoded.turn_end_missing
    assert encoded.pasted == []
    return runs(encoded.input_ids, [label != IGNORED for label in encoded.labels], tokenizer)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", sorted(STYLES))
def test_exactly_the_answers_and_their_ends_are_learnt(name: str, case: str) -> None:
    """B01, B13: no template of these has marks, and several rewrite earlier turns."""
    if name not in NAMES:
        pytest.skip(f"this version of trl has no template {name}")
    assert "endgeneration" not in source(name)
    assert learnt(name, case) == expected(name, case)


@pytest.mark.parametrize("name", MARKED)
def test_marks_are_followed(name: str) -> None:
    assert template_profile(tokenizer_for(source(name))).marked
    for case in CASES:
        found = learnt(name, case)
        if found is None:
            continue
        texts = marks(name, case)
        if name == "diffusion_gemma_training" and case == "tools":  # its marks lack the token that stops a call
            texts[0] += "<|tool_response>"
        # phi3's marks go on after the end of its last turn.
        assert found == [text if text.endswith("\n</s>") else without_after(text) for text in texts]


@pytest.mark.parametrize("name", TWINS)
def test_differences_from_the_marked_twin_have_a_reason(name: str) -> None:
    seen = set()
    for case in CASES:
        try:
            marked = marks(f"{name}_training", case)
        except Exception:  # what the twin refuses, the original does too
            assert learnt(name, case) is None, case
            continue
        seen |= differences(name, learnt(name, case), marked)
    assert seen <= set(REASONS)
    assert set(BEFORE.get(name, {}).values()) <= seen  # no reason is listed in vain


def test_the_documented_table_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["make_template_table.py", "--check"])
    runpy.run_path(str(Path(__file__).parents[2] / "docs" / "make_template_table.py"), run_name="__main__")


def test_every_original_template_is_in_the_table() -> None:
    """A newer trl may have more; those must at least learn the answers and no question."""
    for name in set(NAMES) - set(STYLES) - set(MARKED):
        for case in CASES:
            text = "".join(learnt(name, case) or ["a two"])
            assert "a two" in text or "a one" in text
            assert not any(foreign in text for foreign in ("q one", "q two", "be brief", "sun"))


@pytest.mark.parametrize("name", NAMES)
def test_no_question_is_learnt(name: str) -> None:
    for case in CASES:
        text = "".join(learnt(name, case) or [])
        assert not any(foreign in text for foreign in ("q one", "q two", "be brief", "sun"))


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("glm4moe", ["<|user|>", "<|observation|>"]),  # its generation_config stops at these
        ("glm4moe_training", ["<|user|>", "<|observation|>"]),
        ("gptoss", ["<|return|>", "<|call|>"]),
        ("gemma4", ["<turn|>", "<|tool_response>"]),
        ("qwen3", ["<|im_end|>"]),
        ("cohere2", ["<|END_OF_TURN_TOKEN|>"]),
    ],
)
def test_tokens_that_generation_stops_at(name: str, ends: list[str]) -> None:
    tokenizer = tokenizer_for(source(name))
    assert turn_end_ids(tokenizer) == tokenizer.convert_tokens_to_ids(ends)


def test_turn_that_ends_where_the_next_one_opens() -> None:
    """B05: GLM's turns have no end of their own; the model stops by opening the next turn, also after the last one."""
    tokenizer = tokenizer_for(source("glm4moe"))
    chat = chat_of("multi")
    text = tokenizer.decode(encode(chat, tokenizer).input_ids)
    assert text == tokenizer.apply_chat_template(chat.messages, tokenize=False) + "<|user|>"
    asked = Chat([*chat.messages, {"role": "user", "content": "q"}], None, (False, True, False, False, False))
    assert tokenizer.decode(encode(asked, tokenizer).input_ids).endswith("<|user|>\nq")
    first = Chat(chat.messages, None, (False, True, False, False))
    assert tokenizer.decode(encode(first, tokenizer).input_ids).endswith("a two")


def test_arguments_that_must_be_json() -> None:
    """A25: arguments come as objects; a template that wants them as JSON text gets that."""
    assert template_profile(tokenizer_for(source("deepseekv3"))).dialect.json_arguments
    assert not template_profile(tokenizer_for(source("qwen3"))).dialect.json_arguments


def test_contents_that_must_be_lists_of_parts() -> None:
    for name in ("idefics3", "smolvlm", "llava_next"):
        assert template_profile(tokenizer_for(source(name))).dialect.parts
    assert not template_profile(tokenizer_for(source("qwen2_5_vl"))).dialect.parts
