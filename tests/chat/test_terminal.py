"""A conversation without a process of its own: what is refused leaves no trace, what is dropped is said."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from toolkit.chat.asking import Asking
from toolkit.chat.display import Screen
from toolkit.chat.output import write_lines
from toolkit.chat.speaker import Choice, Speaker, speaker_of
from toolkit.chat.terminal import converse
from toolkit.errors import UserError
from toolkit.finished import load_finished


@pytest.fixture(scope="module")
def speaker(talker: Path) -> Speaker:
    return speaker_of("fine-tuned", *load_finished(talker))


def said(speakers: list[Speaker], lines: str, monkeypatch, capsys, **options) -> tuple[str, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    choice = Choice(max_new_tokens=8, **options)
    converse(speakers, Asking(speakers[0].tokenizer), choice, Screen(several=len(speakers) > 1))
    return capsys.readouterr()


def test_a_message_that_one_cannot_take_is_kept_by_none(speaker: Speaker, monkeypatch, capsys) -> None:
    both = [replace(speaker, name="base", context=None), replace(speaker, context=150)]
    plain = said(both, "to\nin\n", monkeypatch, capsys)
    long = "to " * 200
    refused = said(both, f"to\n{long}\nin\n", monkeypatch, capsys)
    assert refused[0] == plain[0]
    assert refused[1].count("not sent: ") == 1
    assert "not sent" not in plain[1]


def test_what_no_longer_fits_is_dropped_with_a_word(speaker: Speaker, monkeypatch, capsys) -> None:
    """There is no room for three messages and two answers."""
    line = "a of to and in is\n" * 3
    alone = len(Asking(speaker.tokenizer).chat([{"role": "user", "content": line.splitlines()[0]}]))
    out, err = said([replace(speaker, context=2 * alone + 2 * 8 + 4)], line, monkeypatch, capsys)
    assert len(out.splitlines()) >= 3
    assert "dropped the oldest message and its answer" in err
    kept_out, kept_err = said([replace(speaker, context=None)], line, monkeypatch, capsys)
    assert "dropped" not in kept_err
    assert kept_out != out


def test_sampling_is_repeated_by_its_seed(speaker: Speaker, monkeypatch, capsys) -> None:
    lines = "to\nin\n/reset\nto\n"
    first, second, other = (
        said([speaker], lines, monkeypatch, capsys, do_sample=True, seed=seed)[0] for seed in (1, 1, 2)
    )
    assert first == second != other


def test_a_file_that_came_meanwhile_is_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "answers.jsonl"
    write_lines(output, [{"row": 1, "answer": "å"}])
    assert output.read_text(encoding="utf-8") == '{"row": 1, "answer": "å"}\n'
    with pytest.raises(UserError, match="exists already"):
        write_lines(output, [])
    assert [file.name for file in tmp_path.iterdir()] == ["answers.jsonl"]
    assert output.read_text(encoding="utf-8") == '{"row": 1, "answer": "å"}\n'
