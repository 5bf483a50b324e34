"""One source of rows: where it is and how to read it."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.config import SourceConfig
from toolkit.data.rows import Row, RowError
from toolkit.errors import UserError

Rows = Iterable["Row | RowError"]


@dataclass(frozen=True)
class Block:
    """Some consecutive rows of one file, ready to be sent to another process.

    size: bytes of the file that it stands for, for progress; 0 where unknown. Rows that could not be read are in it as
    their errors, in their place.
    """

    size: int

    def rows(self) -> Iterator[Row | RowError]:
        """The rows, parsed where this is called."""
        raise NotImplementedError


@dataclass(frozen=True)
class ParsedBlock(Block):
    """Rows that were parsed on reading, as csv must be."""

    parsed: list[Row | RowError]

    def rows(self) -> Iterator[Row | RowError]:
        """The rows as they are."""
        return iter(self.parsed)


@dataclass(frozen=True)
class Source:
    """A source with everything about it decided.

    files: local files in order, empty for a data set of the hub or one saved to disk, which `dataset` names.
    """

    name: str
    spec: SourceConfig
    files: tuple[Path, ...]
    dataset: str | None = None

    def __post_init__(self) -> None:
        spec = self.spec
        if spec.delimiter is not None and len(spec.delimiter) != 1:
            raise UserError(f"data.delimiter must be one character, got {spec.delimiter!r}")
        try:
            codecs.lookup(spec.encoding or "utf-8")
        except LookupError:
            raise UserError(
                f"data.encoding: {spec.encoding!r} is no encoding Python knows; try latin-1, gbk, utf-16"
            ) from None

    @property
    def total_bytes(self) -> int:
        """Bytes of all files on disk, compressed as they are."""
        return sum(file.stat().st_size for file in self.files)


def blocks_of(rows: Rows, size: int = 0, count: int = 256) -> Iterator[Block]:
    """Parsed rows in blocks of `count`; `size` bytes are spread over them as far as can be known."""
    part: list[Row | RowError] = []
    for row in rows:
        part.append(row)
        if len(part) == count:
            yield ParsedBlock(0, part)
            part = []
    yield ParsedBlock(size, part)
