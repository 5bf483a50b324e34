"""A place that a command is to write to: free, and in a folder that can be written to, before any work is done for it."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.errors import UserError


def check_new(path: Path, option: str) -> None:
    """Raises UserError for a file or a folder that exists, or a place where none can be made; `option` names it."""
    whole = path.absolute()
    if whole.exists():
        raise UserError(f"{option}: {whole} exists already; give another name, or remove it")
    if not whole.parent.is_dir():
        raise UserError(f"{option}: the folder {whole.parent} does not exist; make it first")
    if not os.access(whole.parent, os.W_OK):
        raise UserError(f"{option}: the folder {whole.parent} cannot be written to")
