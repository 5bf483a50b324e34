"""Rows of plain text files: {"text": ...} for each line, paragraph or whole file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from toolkit.data.rows import Row
from toolkit.data.sources.files import open_file, text_lines
from toolkit.data.sources.source import Block, blocks_of


def read_text(path: Path, encoding: str | None, sample_by: str) -> Iterator[Block]:
    """Blocks of rows; `sample_by` is line, paragraph (parted by blank lines) or document. Blank ones are left out."""
    yield from blocks_of(_rows(path, encoding, sample_by), size=path.stat().st_size)


def _rows(path: Path, encoding: str | None, sample_by: str) -> Iterator[Row]:
    held: list[str] = []
    start = 1
    with open_file(path) as opened:
        for number, line in enumerate(text_lines(opened, path, encoding), start=1):
            ended = sample_by == "line" or (sample_by == "paragraph" and not line.strip())
            held.append(line)
            if ended:
                yield from _row(held, path, start)
                held, start = [], number + 1
    yield from _row(held, path, start)


def _row(lines: list[str], path: Path, start: int) -> Iterator[Row]:
    text = "".join(line.removesuffix("\n").removesuffix("\r") + "\n" for line in lines)[:-1]
    if text.strip():
        leading = len(text) - len(text.lstrip("\n"))
        yield Row({"text": text.strip("\n")}, str(path), start + leading)
