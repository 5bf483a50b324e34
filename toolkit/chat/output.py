"""The file that answers go to: never in the place of another, and never there before it is complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toolkit.new_output import check_new


def write_lines(output: Path, lines: list[dict[str, Any]]) -> None:
    """Write `output` under another name and rename it when it is complete. Raises UserError if it is there by then."""
    partial = output.with_name(f".{output.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        check_new(output, "--output")  # generating may take hours
        partial.rename(output)
    finally:
        partial.unlink(missing_ok=True)
