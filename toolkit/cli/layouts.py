"""List the layouts that come with the toolkit: when to choose each, and what it costs."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.errors import UserError

HELP = "list the layout files and when to choose each"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this verb."""
    parser.add_argument("--folder", default="accelerate_configs", help="where the layout files lie")


def run(arguments: argparse.Namespace) -> None:
    """Print each file with the comment at its head."""
    folder = Path(arguments.folder)
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise UserError(f"--folder {folder}: no layout files there ({folder.absolute()}); run this in the repository")
    for file in files:
        lines = file.read_text(encoding="utf-8").splitlines()
        comments = [line.lstrip("# ").rstrip() if line[:3] != "#  " else line[1:] for line in _head(lines)]
        print(f"{file}\n" + "\n".join(f"    {line}".rstrip() for line in comments) + "\n")


def _head(lines: list[str]) -> list[str]:
    for index, line in enumerate(lines):
        if not line.startswith("#"):
            return lines[:index]
    return lines
