"""Rows of JSON lines, in blocks that are parsed where they are used, and of JSON documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from toolkit.data.rows import Row, RowError
from toolkit.data.sources.files import Opened, damaged, is_utf8, not_utf8, open_file, refuse_utf16, text_lines
from toolkit.data.sources.source import Block, blocks_of
from toolkit.errors import UserError

_BLOCK_BYTES = 1 << 20
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
# Whole numbers that do not fit 64 bits, which orjson would turn into floats without a word.
_LONG_NUMBER = re.compile(rb"[:,\[\s-]\d{19}")
_THREE_DIGITS = re.compile(rb"\d\d\d")


@dataclass(frozen=True)
class JsonLines(Block):
    """Raw lines of a file from `first_line` (1-based) on, `offset` bytes into it."""

    path: str
    first_line: int
    offset: int
    payload: bytes

    def rows(self) -> Iterator[Row | RowError]:
        """One row for each line that is not blank."""
        fast = not _has_long_number(self.payload)
        offset = self.offset
        for number, line in enumerate(self.payload.split(b"\n"), start=self.first_line):
            try:
                value = orjson.loads(line) if fast else None
            except orjson.JSONDecodeError:  # told in full, or accepted as Python accepts it, by the slow way
                value = None
            if type(value) is dict:
                yield Row(value, self.path, number)
            elif line and not line.isspace():
                yield self._slowly(line, number, offset)
            offset += len(line) + 1

    def _slowly(self, line: bytes, number: int, offset: int) -> Row | RowError:
        where = f"{self.path}:{number}"
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            reason, _, advice = not_utf8(error, offset).partition("; ")
            reason, _, detail = reason.partition(" (")
            return RowError(where, reason, detail.removesuffix(")"), advice)
        try:
            return Row(_object(_parse(text, where), text, where), self.path, number)
        except RowError as error:
            return error


def _has_long_number(payload: bytes) -> bool:
    """True if there is a number of 19 digits or more. Those have a digit at three places in a row of every sixth, which
    is looked for first: looking at every byte would take as long as parsing."""
    return _THREE_DIGITS.search(payload[::6]) is not None and _LONG_NUMBER.search(payload) is not None


def read_json(path: Path, encoding: str | None, field: str | None) -> Iterator[Block]:
    """JSON lines or one JSON document, told apart by the content: both suffixes are used for both in the wild."""
    if field is not None or _is_document(path, encoding):
        rows = _document_rows(path, encoding, field)
        yield from blocks_of(rows, size=path.stat().st_size)
    else:
        with open_file(path) as opened:
            lines = _utf8_blocks(opened, path) if is_utf8(encoding) else _recoded_blocks(opened, path, encoding)
            yield from lines


def _utf8_blocks(opened: Opened, path: Path) -> Iterator[Block]:
    number, offset, position = 1, 0, 0
    try:
        while payload := opened.stream.read(_BLOCK_BYTES):
            payload += opened.stream.readline()
            skipped = 0
            if offset == 0:
                refuse_utf16(payload, path)
                skipped = 3 * payload.startswith(b"\xef\xbb\xbf")
            reached = opened.position()
            yield JsonLines(reached - position, str(path), number, offset + skipped, payload[skipped:])
            number, offset, position = number + payload.count(b"\n"), offset + len(payload), reached
    except OSError as error:
        raise damaged(path, number, error) from None


def _recoded_blocks(opened: Opened, path: Path, encoding: str | None) -> Iterator[Block]:
    number, first, held, size = 0, 1, [], 0
    for number, line in enumerate(text_lines(opened, path, encoding), start=1):
        held.append(line.encode("utf-8", "surrogatepass"))
        size += len(held[-1])
        if size > _BLOCK_BYTES:
            yield JsonLines(size, str(path), first, 0, b"".join(held))
            first, held, size = number + 1, [], 0
    yield JsonLines(size, str(path), first, 0, b"".join(held))


def _is_document(path: Path, encoding: str | None) -> bool:
    is_json = ".json" in path.suffixes[-2:]
    with open_file(path) as opened:
        lines = (line for line in text_lines(opened, path, encoding) if line.strip())
        first = next(lines, "").lstrip()
        if not first:
            return False
        if _is_json(first.strip().removesuffix(",")):  # a comma after each object is a row error, told line by line
            # Lines that are each a list are bad rows; one such line alone is an array of rows.
            return (first[0] == "[" or is_json) and next(lines, None) is None
        return first[0] == "[" or is_json


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _document_rows(path: Path, encoding: str | None, field: str | None) -> Iterator[Row | RowError]:
    """A whole-file JSON array of objects (or one object), with the element number as its line."""
    with open_file(path) as opened:
        text = "".join(text_lines(opened, path, encoding))
    document = _parse(text, str(path), whole_file=True)
    elements = _elements(document, path, field)
    if elements and all(isinstance(e, dict) and "role" in e and "messages" not in e for e in elements):
        raise RowError(f"{path}:1", "a bare list of messages", advice='write {"messages": [...]}, one object a row')
    for number, element in enumerate(elements, start=1):
        try:
            quoted = "" if isinstance(element, dict) else str(element)
            yield Row(_object(element, quoted, f"{path}:{number}"), str(path), number)
        except RowError as error:
            yield error


def _elements(document: Any, path: Path, field: str | None) -> list[Any]:
    """The rows of a document: the list that it is or that lies under `field`, or the document as the only row."""
    if field is not None:
        if not isinstance(document, dict) or not isinstance(document.get(field), list):
            keys = ", ".join(document) if isinstance(document, dict) else "it is no object"
            raise UserError(f"{path}: there is no list under field {field!r} (keys: {keys}); correct data.train.field")
        return document[field]
    if isinstance(document, list):
        return document
    lists = [key for key, value in document.items() if _is_list_of_rows(value)] if isinstance(document, dict) else []
    if len(lists) == 1:
        raise UserError(
            f"{path}: the rows seem to lie under {lists[0]!r}; set field: {lists[0]} beside path in data.train"
        )
    return [document]


def _is_list_of_rows(value: Any) -> bool:
    objects = isinstance(value, list) and len(value) > 0 and all(isinstance(item, dict) for item in value)
    return objects and not any({"role", "from", "function", "type"} & set(item) for item in value)


def _parse(text: str, where: str, whole_file: bool = False) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if whole_file:
            where = f"{where}:{error.lineno}"
        around = text[max(0, error.pos - 100) : error.pos + 100] if whole_file else text
        if _is_trailing_comma(text, error.pos):
            raise RowError(where, "trailing comma", f"column {error.colno}", "remove it", around) from None
        raise RowError(where, "not valid JSON", f"{error.msg}, column {error.colno}", "fix the row", around) from None
    except (ValueError, RecursionError) as error:
        raise RowError(where, "not valid JSON", str(error)[:80], "fix the row", text) from None
    if _SURROGATE_ESCAPE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            advice = "half of a \\u pair is missing, write the whole character"
            raise RowError(where, "unpaired surrogate", advice=advice, quoted="" if whole_file else text) from None
    return value


def _is_trailing_comma(text: str, position: int) -> bool:
    """Python before 3.13 points after the comma and does not name it; later ones point at it."""
    rest = text[position:].strip()
    if rest[:1] == ",":
        return rest[1:].lstrip()[:1] in ("", "}", "]")
    return rest[:1] in ("}", "]") and text[:position].rstrip().endswith(",")


def _object(value: Any, text: str, where: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    advice = "each row must be an object"
    if isinstance(value, list):
        advice += ' such as {"messages": [...]}'
    kind = {list: "a list", str: "a string", type(None): "null"}.get(type(value), f"a {type(value).__name__}")
    raise RowError(where, f"the row is {kind}, not an object", advice=advice, quoted=text)
