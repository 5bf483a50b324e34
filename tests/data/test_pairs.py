"""Two answers to one prompt: shared once, cut so that both keep their answers, and computed as each would be alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from toolkit.attention import ISOLATED
from toolkit.data.collate import collate
from toolkit.data.fit import Piece
from toolkit.data.pairs import fit_pair, join, sides
from toolkit.data.tokens import TokenRows
from toolkit.objectives.head import hidden_states


def piece(text: str) -> Piece:
    """One token a word; those in capitals are learnt."""
    words = text.split()
    ids = np.array([5 + sum(map(ord, word.lower())) % 300 for word in words], dtype=np.int32)
    return Piece(ids, np.array([word.isupper() for word in words]))


def equal(one: Piece, other: Piece) -> bool:
    return np.array_equal(one.input_ids, other.input_ids) and np.array_equal(one.supervised, other.supervised)


@pytest.mark.parametrize(
    ("chosen", "rejected", "shared"),
    [
        ("a b c YES END", "a b c NO NO END", 2),
        ("a b c YES END", "a b c YES NO END", 2),  # equal first words of the answers are not of the prompt
        ("a b d YES END", "a b c NO END", 1),  # the last token of the prompt merged with an answer
        ("a YES", "a NO", 0),
        ("a b x YES", "a b NO", 1),  # template text that only one side has before its answer
    ],
)
def test_the_shared_part_ends_before_the_last_token_of_the_prompt(chosen: str, rejected: str, shared: int) -> None:
    row = join(piece(chosen), piece(rejected))
    assert row.branches == (shared, len(chosen.split()))
    assert len(row.input_ids) == len(chosen.split()) + len(rejected.split()) - shared
    assert not row.supervised[row.branches[1]]
    first, second = sides(row)
    assert equal(first, piece(chosen))
    assert equal(second, piece(rejected))


@pytest.mark.parametrize(
    ("limit", "chosen", "rejected", "ends"),
    [
        (7, "a b c d YES END", "a b c d NO NO END", 0),
        (6, "b c d YES END", "b c d NO NO END", 0),
        (4, "d YES END", "d NO NO END", 0),  # one token of the prompt is left
        (3, "d YES END", "d NO NO", 1),
        (2, "d YES", "d NO", 2),
    ],
)
def test_a_long_pair_loses_the_beginning_of_its_prompt_first(limit: int, chosen: str, rejected: str, ends: int) -> None:
    row = join(piece("a b c d YES END"), piece("a b c d NO NO END"))
    fitted, lost = fit_pair(row, limit)
    assert lost == ends
    first, second = sides(fitted)
    assert equal(first, piece(chosen))
    assert equal(second, piece(rejected))


def test_a_side_without_a_label_drops_the_pair() -> None:
    assert fit_pair(join(piece("a b c d YES"), piece("a b c d e f NO")), 2) == (None, 0)


@pytest.fixture(scope="module")
def rows() -> TokenRows:
    pairs = [
        join(piece("a b c d YES I DO"), piece("a b c d NO")),
        join(piece("x y TWO"), piece("x z THREE FOUR")),
        join(piece("q ONE"), piece("q TWO TWO TWO")),
    ]
    return TokenRows.build(
        [(p.input_ids, np.where(p.supervised, p.input_ids, -100)) for p in pairs], [p.branches for p in pairs]
    )


def test_targets_know_their_answers(rows: TokenRows) -> None:
    for padding_free in (True, False):
        batch = collate(rows, np.arange(3), padding_free=padding_free, pad_token_id=0)
        assert batch.pairs == 3
        assert batch.answers.tolist() == [0, 0, 0, 1, 2, 3, 3, 4, 5, 5, 5]
        said = ["yes", "i", "do", "no", "two", "three", "four", "one", "two", "two", "two"]
        assert batch.targets[batch.labelled].tolist() == [5 + sum(map(ord, word)) % 300 for word in said]
        assert batch.label_tokens == 11
    assert batch.input_ids.shape == (6, 7)
    shared = collate(rows, np.arange(3), padding_free=True, pad_token_id=0)
    assert shared.input_ids.shape[1] == shared.tokens == (7 + 5 - 3) + (3 + 4 - 0) + (2 + 4 - 0)
    assert shared.position_ids[0, :9].tolist() == [0, 1, 2, 3, 4, 5, 6, 3, 4]
    filler = collate(rows, np.arange(0), padding_free=True, pad_token_id=0)
    assert (filler.pairs, filler.tokens, filler.answers) == (0, 0, None)


@pytest.mark.parametrize("window", [None, 3])
def test_each_side_computes_what_it_would_compute_alone(tiny_model: Path, rows: TokenRows, window: int | None) -> None:
    """Against transformers' own attention on each side as a row of its own; also through a sliding window."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=ISOLATED).eval()
    if window is not None:
        for layer in model.model.layers:
            layer.self_attn.sliding_window = window
    batch = collate(rows, np.arange(3), padding_free=True, pad_token_id=0)
    apart = collate(rows, np.arange(3), padding_free=False, pad_token_id=0)
    together = hidden_states(model, batch)[batch.labelled]
    if window is None:
        model.set_attn_implementation("sdpa")
        expected = hidden_states(model, apart)[apart.labelled]
    else:
        sizes = apart.attention_mask.sum(1).tolist()
        flat = TokenRows.build([(ids[:n], ids[:n]) for ids, n in zip(apart.input_ids.numpy(), sizes, strict=True)])
        alone = hidden_states(model, collate(flat, np.arange(6), padding_free=True, pad_token_id=0))[0]
        expected = alone[torch.cat([mask[:n] for mask, n in zip(apart.labelled, sizes, strict=True)])]
    torch.testing.assert_close(together, expected, rtol=1e-4, atol=1e-5)
