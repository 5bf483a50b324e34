"""Rows that are too long: what is left, and what is counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from toolkit.data.fit import Piece, split, truncate

CONTROLS = np.array([0, 1, 2])


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path):
    return AutoTokenizer.from_pretrained(tiny_model)


def row(mask: str, ids: list[int] | None = None) -> Piece:
    """'.' is not learnt, 'x' is."""
    return Piece(np.array(ids or [40] * len(mask), np.int32), np.array([c == "x" for c in mask]))


def masks(fitted) -> list[str]:
    return ["".join("x" if s else "." for s in piece.supervised) for piece in fitted.pieces]


@pytest.mark.parametrize(
    ("mask", "limit", "kept", "cut", "lost"),
    [
        ("..xxxx", 4, "..xx", 1, 0),
        ("..xx..xx", 4, "..xx", 0, 1),
        ("..xx...xx", 6, "..xx", 0, 1),  # what follows the last answer that fits teaches nothing
        ("..xx..xxx", 8, "..xx..xx", 1, 0),
        ("....xx", 4, None, 0, 1),
        ("....xx", 5, "....x", 1, 0),
    ],
)
def test_truncate(tokenizer, mask: str, limit: int, kept: str | None, cut: int, lost: int) -> None:
    """B04."""
    fitted = truncate(row(mask), limit, tokenizer, CONTROLS)
    assert masks(fitted) == ([kept] if kept else [])
    assert (fitted.answers_cut, fitted.answers_lost) == (cut, lost)


def test_no_character_is_cut_in_two(tokenizer) -> None:
    ids = tokenizer("ab\U0001f600cd")["input_ids"]
    assert len(ids) == 8  # two letters, four bytes, two letters
    for limit, kept in ((2, 2), (3, 2), (4, 2), (5, 2), (6, 6), (7, 7)):
        [piece] = truncate(row("." + "x" * 7, ids), limit, tokenizer, CONTROLS).pieces
        assert len(piece.input_ids) == kept
        assert "\ufffd" not in tokenizer.decode(piece.input_ids.tolist())


def test_no_run_of_control_tokens_is_cut_in_two(tokenizer) -> None:
    ids = [40, 41, 42, 2, 1, 40]
    [piece] = truncate(row("..xxx.", ids), 4, tokenizer, CONTROLS).pieces
    assert piece.input_ids.tolist() == [40, 41, 42]


def test_split_a_text_keeps_every_token(tokenizer) -> None:
    """B20: 13 tokens in rows of 10."""
    fitted = split(row("." + "x" * 12), 10, tokenizer, CONTROLS)
    assert masks(fitted) == ["." + "x" * 9, ".xx"]
    assert (fitted.answers_cut, fitted.answers_lost) == (0, 0)


@pytest.mark.parametrize(
    ("mask", "limit", "kept", "cut", "lost"),
    [
        ("..xx..xx..xx", 8, ["..xx..xx", "..xx"], 0, 0),
        ("..xx..xxxxxx..x", 6, ["..xx", "..xxxx", "..x"], 1, 0),
        ("..xx........xx..x", 6, ["..xx", "..x"], 0, 1),
        ("..xx....", 4, ["..xx"], 0, 0),
    ],
)
def test_no_piece_of_a_conversation_begins_in_an_answer(tokenizer, mask, limit, kept, cut, lost) -> None:
    fitted = split(row(mask), limit, tokenizer, CONTROLS)
    assert masks(fitted) == kept
    assert (fitted.answers_cut, fitted.answers_lost) == (cut, lost)
