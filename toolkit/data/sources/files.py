"""Bytes and lines of a file, whatever it is compressed with and encoded in."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from toolkit.errors import UserError

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_UTF8 = ("utf-8", "utf8", "utf_8", "utf-8-sig")


@dataclass(frozen=True)
class Opened:
    """A file being read: `stream` gives its bytes decompressed, `raw` knows how far on disk that is."""

    stream: BinaryIO
    raw: BinaryIO

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def position(self) -> int:
        """Bytes of the file on disk that have been read."""
        return self.raw.tell()


class _Decompressed(io.RawIOBase):
    """pyarrow's decompressors (several members in a file, truncation told) as a Python stream."""

    def __init__(self, raw: BinaryIO, codec: str) -> None:
        self._stream = pa.CompressedInputStream(pa.PythonFile(raw, "r"), codec)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def open_file(path: Path) -> Opened:
    """Open `path` for reading; `.gz` and `.zst` are decompressed on the way."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    codec = COMPRESSIONS.get(path.suffix.lower())
    return Opened(io.BufferedReader(_Decompressed(raw, codec), 1 << 20) if codec else raw, raw)  # type: ignore[arg-type]


def kind(path: Path) -> str:
    """The suffix that says what is in the file, without that of a compression: `.jsonl` for `a.jsonl.gz`."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSIONS else suffix


def is_utf8(encoding: str | None) -> bool:
    """True for the encoding that files have unless something else is said."""
    return encoding is None or encoding.lower() in _UTF8


def text_lines(opened: Opened, path: Path, encoding: str | None) -> Iterator[str]:
    """Physical lines, ends kept, decoded as UTF-8 whatever the locale says; a byte order mark is dropped.

    Only a line feed ends a line: a carriage return alone may be part of a text. Raises `UserError` that names the line.
    """
    if is_utf8(encoding):
        yield from _utf8_lines(opened, path)
        return
    reader = io.TextIOWrapper(opened.stream, encoding=encoding, newline="\n")
    number = 1
    try:
        for number, line in enumerate(reader, start=1):
            yield line.removeprefix("\ufeff") if number == 1 else line
    except UnicodeError as error:
        advice = f"data.encoding is {encoding}; is that what the file is in?"
        raise UserError(f"{path}: not valid {encoding} after line {number} ({error}); {advice}") from None
    except OSError as error:
        raise damaged(path, number, error) from None
    finally:
        if not opened.raw.closed:
            reader.detach()  # or it would close the file that the caller still reads


def _utf8_lines(opened: Opened, path: Path) -> Iterator[str]:
    offset, number = 0, 0
    try:
        for number, line in enumerate(opened.stream, start=1):
            if number == 1:
                refuse_utf16(line, path)
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{path}:{number}: {not_utf8(error, offset)}") from None
            offset += len(line)
            yield text.removeprefix("\ufeff") if number == 1 else text
    except OSError as error:
        raise damaged(path, number, error) from None


def refuse_utf16(beginning: bytes, path: Path) -> None:
    """Raise `UserError` for the byte order mark of UTF-16, which no UTF-8 file begins with."""
    if beginning[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UserError(f"{path}:1: the file is UTF-16, not UTF-8; set data.encoding: utf-16, or convert it with iconv")


def not_utf8(error: UnicodeDecodeError, offset: int) -> str:
    """What is wrong and what to do; `offset` bytes of the file came before the text that failed."""
    found = f"byte 0x{error.object[error.start]:02x} at offset {offset + error.start}"
    return f"not valid UTF-8 ({found}); set data.encoding (latin-1, gbk, ...) or convert: iconv -f LATIN1 -t UTF-8"


def damaged(path: Path, line: int, error: OSError) -> UserError:
    """The error for a file that ends early or does not decompress."""
    reason = " ".join(str(error).split())[:200]
    return UserError(f"{path}: cannot be read after line {line} ({reason}); the file is damaged or was cut short")
