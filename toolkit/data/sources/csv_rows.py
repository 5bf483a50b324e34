"""Rows of a csv file: every field the string it is, every error with the physical line where its row starts."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from toolkit.data.rows import Row, RowError
from toolkit.data.sources.files import open_file, text_lines
from toolkit.data.sources.source import Block, ParsedBlock
from toolkit.errors import UserError

_OTHER_DELIMITERS = (",", ";", "\t", "|")
_ROWS = 256


def read_csv(path: Path, encoding: str | None, delimiter: str) -> Iterator[Block]:
    """Blocks of rows. A row with too many or too few fields is an error in its place; a broken quote ends the file,
    since where it really closes is unknown."""
    csv.field_size_limit(2**31 - 1)  # the default of 128 KiB is shorter than a long document
    with open_file(path) as opened:
        # strict: a quote that closes too early or never is an error, not text that swallows the following rows.
        reader = csv.reader(text_lines(opened, path, encoding), delimiter=delimiter, strict=True)
        header: list[str] | None = None
        part: list[Row | RowError] = []
        position = 0
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                advice = 'quote text as "..." and double quotes inside'
                raise RowError(f"{path}:{line}", "not valid CSV", str(error), advice) from None
            if not fields or (len(fields) == 1 and not fields[0].strip() and header is not None and len(header) > 1):
                continue
            if header is None:
                header = _checked_header(fields, f"{path}:{line}", delimiter)
                continue
            part.append(_row(header, fields, path, line, delimiter))
            if len(part) == _ROWS:
                reached = opened.position()
                yield ParsedBlock(reached - position, part)
                part, position = [], reached
        yield ParsedBlock(opened.position() - position, part)


def _row(header: list[str], fields: list[str], path: Path, line: int, delimiter: str) -> Row | RowError:
    if len(fields) == len(header):
        return Row(dict(zip(header, fields, strict=True)), str(path), line)
    count = f"{len(fields)} field{'s' if len(fields) != 1 else ''}, header has {len(header)}"
    return RowError(f"{path}:{line}", count, advice='quote the text: "a, b"', quoted=delimiter.join(fields))


def _checked_header(header: list[str], where: str, delimiter: str) -> list[str]:
    if len(header) == 1:
        other = next((d for d in _OTHER_DELIMITERS if d != delimiter and d in header[0]), None)
        if other is not None:
            raise UserError(f"{where}: the only column found is {header[0]!r}; set data.delimiter: {other!r}")
    doubled = sorted({name for name in header if header.count(name) > 1})
    if doubled:
        raise UserError(f"{where}: duplicate column {doubled[0]!r} in the header {header}; give each its own name")
    return header
