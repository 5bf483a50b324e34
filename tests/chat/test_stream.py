"""Text appears with its token, and no character in halves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from toolkit.chat.stream import TextStream, text_of

TEXTS = ["the question", "å 你好 🙂!", "🙂🙂\n\n  two  spaces ", "to\tthe\n", "a b"]


@pytest.mark.parametrize("text", TEXTS)
def test_characters_come_whole_and_at_once(tiny_model: Path, text: str) -> None:
    """The tokenizer has one token for each byte of these characters: 你 is three tokens, the face four."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    ids = tokenizer(text)["input_ids"]
    written: list[str] = []
    stream = TextStream(tokenizer, [tokenizer.eos_token_id], written.append)
    stream.put(torch.tensor([[5, 6, 7]]))
    for count, one in enumerate(ids, start=1):
        stream.put(torch.tensor([one]))
        whole = text.encode()[: len("".join(tokenizer.convert_ids_to_tokens(ids[:count])))]
        assert "".join(written) == whole.decode("utf-8", "ignore"), "what is whole by now, and nothing else"
    stream.put(torch.tensor([tokenizer.eos_token_id]))
    stream.end()
    assert "".join(written) == text
    assert all("\ufffd" not in part for part in written)


def test_bytes_that_are_no_text_do_not_hold_everything_back(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    half = tokenizer("🙂")["input_ids"][0]
    ids = [half] * 20 + tokenizer("🙂a")["input_ids"]
    written: list[str] = []
    stream = TextStream(tokenizer, [], written.append)
    stream.put(torch.tensor([[5]]))
    for count, one in enumerate(ids[:20], start=1):
        stream.put(torch.tensor([one]))
        assert sum(map(len, written)) == max(0, count - 3)
    for one in ids[20:]:
        stream.put(torch.tensor([one]))
    stream.end()
    assert "".join(written) == text_of(tokenizer, ids)
    assert "".join(written).endswith("\ufffd🙂a")


def test_an_answer_that_ends_inside_a_character_is_written_to_its_end(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    ids = tokenizer("a🙂")["input_ids"][:-1]
    written: list[str] = []
    stream = TextStream(tokenizer, [], written.append)
    stream.put(torch.tensor([[5]]))
    for one in ids:
        stream.put(torch.tensor([one]))
    assert written == ["a"]
    stream.end()
    assert "".join(written) == text_of(tokenizer, ids) != "a"
