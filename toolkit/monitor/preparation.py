"""How far the preparation of data is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import DownloadColumn, TaskID

from toolkit.monitor.banner import bar, console, note

_LINE_SECONDS = 30.0


class PreparationProgress:
    """Call it with what is going on, bytes done and bytes in all; a total of 0 means unknown. Quiet unless `active`."""

    def __init__(self, *, active: bool = True) -> None:
        self._active = active
        self._bar = bar(DownloadColumn(), active=active, transient=True)
        self._tasks: dict[str, TaskID] = {}
        self._said = time.monotonic()

    def __enter__(self) -> PreparationProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show the state; cheap enough to be called for every block."""
        if not self._active:
            return
        if what not in self._tasks:
            for task in self._tasks.values():
                self._bar.remove_task(task)
            self._tasks = {what: self._bar.add_task(what, total=total or None)}
        self._bar.update(self._tasks[what], completed=done)
        if not console.is_terminal and time.monotonic() - self._said > _LINE_SECONDS:
            self._said = time.monotonic()
            note(f"{what}" + (f": {done / total:.0%} of {total / 1e6:,.0f} MB" if total else ""))
