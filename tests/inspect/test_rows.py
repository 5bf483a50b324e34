"""What is shown of one row: token texts, and the message each token belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests.inspect.data import END, collected, letters, part, row
from toolkit.data.chat import encode
from toolkit.data.examples import Chat, Completion, Example, Text
from toolkit.data.tokens import TokenRows
from toolkit.inspect.collect import Collected, Part, decoder, special_ids
from toolkit.inspect.rows import ShownRow, chosen_rows, shown_row, token_texts


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_model)


def shown(
    tokenizer: PreTrainedTokenizerBase, example: Example, keep: int | None = None, known: bool = True
) -> ShownRow:
    encoded = encode(example, tokenizer)
    rows = TokenRows.build([(encoded.input_ids[:keep], encoded.labels[:keep])])
    only = Part("train", rows, lambda i: "a.jsonl:1", lambda i: example if known else None)
    data = Collected(only, None, [], special_ids(tokenizer), decoder(tokenizer), 64)
    return shown_row(data, only, 0)


def texts(row: ShownRow) -> list[tuple[str, str]]:
    return [(block.role, "".join(token.text for token in block.tokens)) for block in row.blocks]


def chat(*turns: tuple[str, str]) -> Chat:
    return Chat([{"role": r, "content": c} for r, c in turns], None, tuple(r == "assistant" for r, _ in turns))


def test_each_message_is_found_with_what_closes_it(tokenizer) -> None:
    row = shown(
        tokenizer,
        chat(("system", "be brief"), ("user", "user"), ("assistant", "is"), ("user", "is"), ("assistant", "a")),
    )
    frame = [("template", f"\n<|im_start|>{role}\n") for role in ("user", "assistant", "user", "assistant")]
    assert texts(row) == [
        ("template", "<|im_start|>system\n"), ("system", "be brief<|im_end|>"),
        frame[0], ("user", "user<|im_end|>"), frame[1], ("assistant", "is<|im_end|>"),
        frame[2], ("user", "is<|im_end|>"), frame[3], ("assistant", "a<|im_end|>"), ("template", "\n"),
    ]  # fmt: skip
    learnt = "".join(t.text for b in row.blocks for t in b.tokens if t.supervised)
    assert learnt == "is<|im_end|>a<|im_end|>"
    assert row.supervised == sum(t.supervised for b in row.blocks for t in b.tokens)
    assert [t.text for b in row.blocks for t in b.tokens if t.special][:2] == ["<|im_start|>", "<|im_end|>"]


def test_characters_of_several_tokens_are_whole(tokenizer) -> None:
    row = shown(tokenizer, chat(("user", "👩‍👩‍👧 你好?"), ("assistant", "🎉é end")))
    assert ("user", "👩‍👩‍👧 你好?<|im_end|>") in texts(row)
    assert ("assistant", "🎉é end<|im_end|>") in texts(row)
    tokens = [t for b in row.blocks for t in b.tokens]
    assert "".join(t.text for t in tokens) == tokenizer.decode([t.id for t in tokens])
    assert all("\ufffd" not in t.text for t in tokens)
    party = next(i for i, t in enumerate(tokens) if t.text == "🎉")
    assert [t.text for t in tokens[party - 3 : party]] == ["", "", ""]


def test_an_answer_that_was_cut_is_still_the_assistants(tokenizer) -> None:
    example = chat(("user", "q"), ("assistant", "a long answer that will not fit into the row"))
    whole = len(encode(example, tokenizer).input_ids)
    row = shown(tokenizer, example, keep=whole - 12)
    assert texts(row)[-1][0] == "assistant"
    assert texts(row)[-1][1].startswith("a long answer that")
    assert row.tokens == whole - 12


def test_a_question_that_was_cut_is_still_the_users(tokenizer) -> None:
    example = chat(
        ("user", "q"), ("assistant", "is"), ("user", "a long question that will not fit"), ("assistant", "a")
    )
    row = shown(tokenizer, example, keep=len(encode(example, tokenizer).input_ids) - 20)
    assert texts(row)[-1][0] == "user"
    assert texts(row)[-1][1].startswith("a long question")


def test_texts_and_completions(tokenizer) -> None:
    assert texts(shown(tokenizer, Text("the question"))) == [("text", "the question<|im_end|>")]
    row = shown(tokenizer, Completion("the question", " of answer"))
    assert [b for b, _ in texts(row)] == ["prompt", "completion"]
    assert [b for b, _ in texts(shown(tokenizer, Completion("the", " answer", learn_prompt=True)))] == ["text"]


def test_a_row_without_its_example_falls_apart_by_supervision(tokenizer) -> None:
    row = shown(tokenizer, chat(("user", "q"), ("assistant", "is")), known=False)
    assert [role for role, _ in texts(row)] == ["prompt", "completion", "prompt"]
    assert [role for role, _ in texts(shown(tokenizer, Text("the question"), known=False))] == ["text"]


def test_an_example_that_does_not_fit_is_no_reason_to_fail(tokenizer) -> None:
    other = Chat([{"role": "user", "content": "elsewhere"}, {"role": "assistant"}], None, (False, True))
    only = part([row("ab", "cd")], examples=[other])
    result = shown_row(collected(only), only, 0)
    assert sum(len(b.tokens) for b in result.blocks) == 5
    unmatched = part([row("ab", "cd")], examples=[chat(("user", "elsewhere"), ("assistant", "nowhere"))])
    assert texts(shown_row(collected(unmatched), unmatched, 0)) == [("template", "ab"), ("assistant", "cd<end>")]


def test_a_decoder_that_trims_the_beginning_keeps_spaces_inside() -> None:
    def trims(rows: list[list[int]]) -> list[str]:
        return [text.removeprefix(" ") for text in letters(rows)]

    assert "".join(token_texts([ord(c) for c in "a b c"], trims, frozenset({END}))) == "a b c"


def test_rows_shown_are_spread_from_first_to_last() -> None:
    assert chosen_rows(101, 5) == [0, 25, 50, 75, 100]
    assert chosen_rows(2, 5) == [0, 1]
    assert chosen_rows(0, 5) == []
    assert chosen_rows(9, 0) == []
