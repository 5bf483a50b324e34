"""Tokenized data that is made once, by whoever comes first, while everybody else waits without a collective.

Any number of ranks, nodes and jobs may ask for one entry at the same time. A file lock, which the operating system
releases when its holder dies, lets one of them make it; an entry appears under its name only when it is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from toolkit.data.store import is_complete
from toolkit.errors import UserError

_POLL_SECONDS = 0.2
_NOTE_SECONDS = 0.5

# Tells whoever watches: what is going on, bytes done, bytes in all.
Progress = Callable[[str, int, int], None]


@dataclass
class ProgressNote:
    """Tells `progress`, and now and then a file for the processes that wait elsewhere."""

    file: Path
    progress: Progress
    _written: float = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report `done` of `total` bytes."""
        self.progress(what, done, total)
        if time.monotonic() - self._written > _NOTE_SECONDS:
            self._written = time.monotonic()
            self.file.write_text(json.dumps([what, done, total]), encoding="utf-8")


def cache_folder(cache_dir: str | None, kind: str = "tokens") -> Path:
    """Where what is computed from data is kept, in a folder for each kind: below the option, $TOOLKIT_CACHE, or
    ~/.cache/toolkit. Raises `UserError` if not writable."""
    chosen = cache_dir or os.environ.get("TOOLKIT_CACHE") or "~/.cache/toolkit"
    folder = Path(chosen).expanduser().absolute() / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"data.cache_dir: cannot write to {folder} ({error.strerror}); set it to another folder"
        ) from None
    return folder


def obtain(folder: Path, name: str, make: Callable[[Path, Progress], None], progress: Progress) -> tuple[Path, bool]:
    """The entry `name`, and whether it was there already. `make(folder, progress)` fills a new folder with it.

    Returns when the entry is whole, whoever made it. What `make` raises is raised here and leaves nothing behind.
    """
    entry, note = folder / name, folder / f"{name}.progress"
    lock = FileLock(folder / f"{name}.lock")
    while not is_complete(entry):
        if not _acquired(lock, folder):
            _pass_on(note, progress)
            time.sleep(_POLL_SECONDS)
            continue
        try:
            if not is_complete(entry):
                _make(entry, make, ProgressNote(note, progress))
                return entry, False
        finally:
            lock.release()
    return entry, True


def _acquired(lock: FileLock, folder: Path) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    except (NotImplementedError, OSError) as error:
        raise UserError(f"data.cache_dir: {folder} has no file locks ({error}); set it to another folder") from None
    return True


def _make(entry: Path, make: Callable[[Path, Progress], None], progress: ProgressNote) -> None:
    partial = entry.with_name(f"{entry.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that died; the lock is ours, so no one writes there
    shutil.rmtree(entry, ignore_errors=True)
    try:
        make(partial, progress)
        partial.rename(entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        progress.file.unlink(missing_ok=True)


def _pass_on(note: Path, progress: Progress) -> None:
    """Show how far the process that holds the lock is."""
    try:
        what, done, total = json.loads(note.read_text(encoding="utf-8"))
        progress(f"{what} (by another process)", done, total)
    except (OSError, ValueError):  # not begun, just ended, or being written
        progress("waiting for another process that tokenizes the same data", 0, 0)
