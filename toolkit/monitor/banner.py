"""The start banner: everything that was derived, defaulted or decided, before the first step."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

console = Console(soft_wrap=True, highlight=False)


def print_table(title: str, entries: Mapping[str, str]) -> None:
    """A two-column table on standard output."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in entries.items():
        table.add_row(name, value)
    console.print(table)


def bar(*columns: ProgressColumn, active: bool, transient: bool = False) -> Progress:
    """A progress bar with these columns between its bar and the time left; only on a terminal, and only if `active`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=transient,
        disable=not (active and console.is_terminal),
    )


def note(message: str) -> None:
    """One line that the user should read: a default taken, something changed, a warning.

    Text of the user's may have characters that the terminal cannot show; they are escaped, never the end of a run.
    """
    console.print(message.encode(console.encoding, "backslashreplace").decode(console.encoding), markup=False)
