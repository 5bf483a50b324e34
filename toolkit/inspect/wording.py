"""How numbers, shares and places are put in words, on the page and in the terminal alike."""

from __future__ import annotations

from html import escape
from pathlib import PurePath


def rows_of(count: int, kind: str = "") -> str:
    """`1 row`, `2 training rows`."""
    return f"{count:,} {kind + ' ' if kind else ''}{'row' if count == 1 else 'rows'}"


def counted(count: int, one: str, many: str) -> str:
    """`one` or `many` with the number before it: `1 prompt has`, `3 prompts have`."""
    return f"{count:,} {one if count == 1 else many}"


def percent(share: float) -> str:
    """A share in whole percent; small ones with a decimal, and never 0 % or 100 % for what is not quite that."""
    if 0 < share < 0.0005:
        return "<0.1 %"
    if 0.995 <= share < 1:
        return ">99 %"
    return f"{100 * share:.1f} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"


def short_number(count: int) -> str:
    """`945`, `45.3 k`, `1.2 M`: a number for a headline."""
    for size, unit in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if count >= size:
            scaled = count / size
            return f"{scaled:.0f}{unit}" if scaled >= 99.95 else f"{scaled:.1f}{unit}"
    return f"{count:,}"


def short_place(place: str) -> str:
    """FILE:LINE without the folders; the whole of what is no path."""
    return PurePath(place).name or place


def sentence(text: str) -> str:
    """With a capital at its head."""
    return text[:1].upper() + text[1:]


def visible_controls(text: str) -> str:
    """Control characters as their pictures, and the characters that turn text around as U+FFFD: data must not steer a
    terminal or a page. Line ends and tabs stay."""
    pictures = {code: 0x2400 + code for code in range(32) if code not in (9, 10)}
    turning = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)
    return text.translate({**pictures, **turning, 127: 0x2421, **dict.fromkeys(range(0x80, 0xA0), 0xFFFD)})


def markup(text: str) -> str:
    """Any text as HTML, in an element or in a quoted attribute."""
    return escape(visible_controls(text))
