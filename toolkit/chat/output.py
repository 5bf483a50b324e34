"""The file that answers go to: never in the place of another, and never there before it is complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toolkit.errors import UserError


def check_output(file: Path) -> None:
    """Raise UserError for a file that exists, or a folder that does not."""
    if file.exists():
        raise UserError(f"--output: {file.absolute()} exists already; give another name, or remove it")
    if not file.absolute().parent.is_dir():
        raise UserError(f"--output: the folder {file.absolute().parent} does not exist; make it first")


def write_lines(output: Path, lines: list[dict[str, Any]]) -> None:
    """Write `output` under another name and rename it when it is complete. Raises UserError if it is there by then."""
    partial = output.with_name(f".{output.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        check_output(output)  # generating may take hours
        partial.rename(output)
    finally:
        partial.unlink(missing_ok=True)
