"""Repeats within training rows, rival answers, and evaluation rows that training has seen."""

from __future__ import annotations

import numpy as np

from tests.inspect.data import collected, part, row
from toolkit.inspect.figures import figures
from toolkit.inspect.findings import findings
from toolkit.inspect.repeats import Repeats, repeats
from toolkit.inspect.scan import groups, scan


def found(train: list, held_out: list | None = None) -> Repeats:
    data = collected(part(train), part(held_out, "eval") if held_out is not None else None)
    other = scan(data.eval.rows, data.decode, data.special) if data.eval else None
    return repeats(data, scan(data.train.rows, data.decode, data.special), other)


def test_duplicates_are_counted_beyond_the_first() -> None:
    rows = [
        row("Q: two?", "Two"),
        row("q:  two?", "TWO"),
        row("other", "x"),
        row("Q: two?", "Two"),
        row("o", "z"),
        row("o", "z"),
    ]
    result = found(rows)
    assert (result.duplicate_rows, result.duplicate_groups) == (3, 2)
    assert result.duplicates[0].places == [f"/data/train.jsonl:{n}" for n in (1, 2, 4)]
    assert (result.duplicates[0].rows, result.duplicates[1].rows) == (3, 2)
    assert (result.rival_rows, result.overlap_rows, result.overlap_prompts) == (0, 0, 0)


def test_one_prompt_with_two_answers_is_a_rival_not_a_duplicate() -> None:
    result = found([row("abc", "yes"), row("abc", "no"), row("abc", "no"), row("abd", "no")])
    assert (result.duplicate_rows, result.duplicate_groups) == (1, 1)
    assert (result.rival_rows, result.rival_groups) == (3, 1)
    assert result.rivals[0].places == [f"/data/train.jsonl:{n}" for n in (1, 2, 3)]


def test_overlap_of_whole_rows_and_of_prompts() -> None:
    train = [row("capital of Norway?", "Oslo"), row("of Sweden?", "Stockholm"), row("of Denmark?", "Copenhagen")]
    held_out = [row("of sweden?", "stockholm"), row("of Denmark?", "København"), row("of Finland?", "Helsinki")]
    result = found(train, held_out)
    assert (result.overlap_rows, result.overlap_prompts) == (1, 2)
    assert (result.overlaps[0].places, result.overlaps[0].eval_places) == (
        ["/data/train.jsonl:2"],
        ["/data/eval.jsonl:1"],
    )
    assert [e.eval_places for e in result.prompt_overlaps] == [["/data/eval.jsonl:1"], ["/data/eval.jsonl:2"]]


def test_plain_text_has_no_prompt() -> None:
    """All of it is learnt but the first token, which is no prompt: else every text that begins alike would overlap."""
    result = found([row("T", "he one"), row("T", "he two")], [row("T", "he three")])
    assert (result.overlap_prompts, result.rival_rows) == (0, 0)


def test_groups_are_exact() -> None:
    digests = np.random.default_rng(0).integers(0, 3, (500, 2)).astype(np.uint64)
    numbers = groups(digests)
    for i in range(0, 500, 7):
        assert (numbers == numbers[i]).tolist() == (digests == digests[i]).all(axis=1).tolist()
    assert len(groups(np.empty((0, 2), np.uint64))) == 0


def test_findings_put_what_is_wrong_first() -> None:
    train, held_out = [row("ab", "cdef"), row("ab", "cdef")], [row("ab", "cdef")]
    data = collected(part(train), part(held_out, "eval"))
    scans = [scan(p.rows, data.decode, data.special) for p in (data.train, data.eval) if p]
    said = findings(
        figures(data, data.train, scans[0]), figures(data, data.eval, scans[1]), [], repeats(data, scans[0], scans[1])
    )
    assert [f.level for f in said] == ["look", "look", "good"]
    assert said[0].text == "1 training row repeats an earlier one"
    assert "1 evaluation row is also trained on" in said[1].text
