"""Side by side where there is room, one below the other where not, and nothing that steers a terminal."""

from __future__ import annotations

import pytest
from rich.console import Console

from toolkit.chat.display import side_by_side

TEXTS = {"base": "one " * 20, "fine-tuned": "two\x1b[31m [bold]red[/bold]"}


def shown(width: int) -> str:
    console = Console(width=width, force_terminal=False, color_system=None, markup=False)
    with console.capture() as capture:
        console.print(side_by_side(TEXTS, width))
    return capture.get()


@pytest.mark.parametrize("width", [72, 120])
def test_wide_enough(width: int) -> None:
    lines = shown(width).splitlines()
    assert any("base" in line and "fine-tuned" in line for line in lines)
    assert any("one" in line and "two" in line for line in lines)
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [71, 30])
def test_narrow(width: int) -> None:
    lines = shown(width).splitlines()
    assert not any("one" in line and "two" in line for line in lines)
    assert [word for line in lines for word in line.split() if word in ("base", "fine-tuned")] == ["base", "fine-tuned"]
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [60, 120])
def test_text_is_text(width: int) -> None:
    assert "\x1b" not in shown(width)
    assert "[bold]red[/bold]" in shown(width)
    assert shown(width).count("one") == 20
