"""The terminal: colour where there is colour, marks where there is none, and no text that it cannot print."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.inspect.data import ACCOUNT, collected, part, report_of, row
from toolkit.data.examples import Chat
from toolkit.inspect.collect import Source
from toolkit.inspect.report import Report
from toolkit.inspect.terminal import print_report, terminal


def report() -> Report:
    chat = Chat(
        [{"role": "user", "content": "hej 🎉"}, {"role": "assistant", "content": "你好 [bold]"}], None, (False, True)
    )
    rows = [row("hej 🎉", "你好 [bold]")] * 2 + [row("x\x1b[31m", "a" * 500)]
    train = part(rows, examples=[chat, chat, None])  # type: ignore[list-item]
    return report_of(
        collected(train, part(rows[:1], "eval"), max_length=600, sources=[Source("[red]s", 0, 3, ACCOUNT)])
    )


def printed(encoding: str, width: int = 80) -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    console = terminal(stream)
    console.width = width
    print_report(report(), console)
    stream.flush()
    return raw.getvalue().decode(encoding)


def test_a_pipe_gets_marks_and_is_told() -> None:
    text = printed("utf-8")
    assert "[[ ]] supervised" in text
    assert "[[你好 [bold]<end>]]" in text
    assert "hej 🎉" in text
    assert "[red]s" in text
    assert "10 rows read = 5 whole + 2 truncated + 1 split + 2 dropped" in text
    assert "\x1b" not in text


def test_an_ascii_terminal_prints_everything_it_can() -> None:
    """F14."""
    text = printed("ascii")
    assert "\\U0001f389" in text
    assert "[[\\u4f60\\u597d" in text
    assert "#" in text


def test_a_colour_terminal_gets_no_marks() -> None:
    out = io.StringIO()
    print_report(report(), Console(file=out, force_terminal=True, color_system="standard", width=100, emoji=False))
    text = out.getvalue()
    assert "[[" not in text
    assert "\x1b[32m你好 " in text  # green
    assert "\x1b[7;32m<end>" in text  # a control token, inverse
    assert "\x1b[31m" not in text  # what the data asked for


@pytest.mark.parametrize("width", [24, 40, 200])
def test_any_width_will_do(width: int) -> None:
    assert "Repeats" in printed("utf-8", width)


def test_what_is_not_shown_is_counted() -> None:
    assert "107 more tokens are not shown (107 of them supervised)" in printed("utf-8")
