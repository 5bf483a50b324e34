"""What a conversation looks like: one answer streamed, or two side by side that grow together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from toolkit.inspect.wording import visible_controls

# Two columns of fewer characters than this each are harder to read than one below the other.
_COLUMN = 36

Writer = Callable[[str], None]


class Screen:
    """Standard output and error as they are: a terminal, where text must not steer it, or a pipe, which gets text as it is."""

    def __init__(self, *, several: bool) -> None:
        for stream in (sys.stdout, sys.stderr):
            reconfigure: Any = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")
        self.several = several
        self._console = Console(file=sys.stdout, highlight=False, emoji=False, markup=False)
        self._remarks: list[str] = []
        self._name = ""

    @property
    def prompt(self) -> str:
        """What is shown where a person may type."""
        return "> " if self._console.is_terminal else ""

    def say(self, message: str) -> None:
        """A line that is no answer."""
        print(message, file=sys.stderr, flush=True)

    def after(self, remark: str) -> None:
        """A remark on the answer that has just ended, shown below it."""
        if remark:
            self._remarks.append(f"({self._name}: {remark})" if self.several else f"({remark})")

    @contextmanager
    def answers(self, names: list[str]) -> Iterator[Iterator[Writer]]:
        """Writers of the answers of one round, to be taken one after the other; on leaving all is on the screen."""
        self._remarks = []
        with self._side_by_side(names) if self.several else self._stream() as writers:
            yield writers
        for remark in self._remarks:
            self.say(remark)

    @contextmanager
    def _stream(self) -> Iterator[Iterator[Writer]]:
        def write(text: str) -> None:
            """As it comes."""
            sys.stdout.write(visible_controls(text) if self._console.is_terminal else text)
            sys.stdout.flush()

        try:
            yield iter([write])
        finally:
            write("\n")

    @contextmanager
    def _side_by_side(self, names: list[str]) -> Iterator[Iterator[Writer]]:
        texts = dict.fromkeys(names, "")

        def writers(live: Live | None) -> Iterator[Writer]:
            """One for each name; what they write is shown at once where there is a terminal."""
            for name in names:
                self._name = name

                def write(text: str, name: str = name) -> None:
                    texts[name] += text
                    if live is not None:
                        live.update(side_by_side(texts, self._console.width))

                yield write

        try:
            if self._console.is_terminal:
                # What grows beyond the screen cannot be redrawn: it is cropped meanwhile and printed whole at the end.
                with Live(console=self._console, transient=True, vertical_overflow="crop") as live:
                    yield writers(live)
            else:
                yield writers(None)
        finally:
            self._console.print(side_by_side(texts, self._console.width))


def side_by_side(texts: dict[str, str], width: int) -> RenderableType:
    """Texts under their names, in columns; one below the other where columns would be too narrow."""
    if width < len(texts) * _COLUMN:
        stacked = Table.grid(expand=True)
        for name, text in texts.items():
            stacked.add_row(Panel(Text(visible_controls(text)), title=name, title_align="left"))
        return stacked
    table = Table(expand=True, show_lines=False)
    for name in texts:
        table.add_column(name, ratio=1, overflow="fold")
    table.add_row(*(Text(visible_controls(text)) for text in texts.values()))
    return table
