"""Rows from files and hub datasets, value for value: nothing is retyped, dropped or repaired on the way.

Local files are read by `json`, `csv` and `pyarrow`, not by table readers that guess types: "NA", "00123" and
"2024-05-01" are answers people write, and they stay the strings they are.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from glob import glob
from pathlib import Path
from typing import Any

from toolkit.data.rows import Row, RowError
from toolkit.errors import UserError

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_OTHER_DELIMITERS = (",", ";", "\t", "|")


OnError = Callable[[RowError], None]


def read_rows(
    source: str | list[str], *, split: str = "train", delimiter: str = ",", on_error: OnError | None = None
) -> Iterator[Row]:
    """Iterate over the rows of `source`, in order, without holding a whole jsonl, csv or parquet file in memory.

    `source` is a file, a folder (its supported files, sorted), a glob, a hub dataset id, or a list of these. `split`
    is for hub datasets, `delimiter` for csv. With `on_error`, a bad row is handed to it and reading goes on.
    Raises `UserError` at the call, before any row is read, where a path does not exist or holds nothing to read;
    `RowError` at a row that cannot be read.
    """
    if len(delimiter) != 1:
        raise UserError(f"data.delimiter must be one character, got {delimiter!r}")
    sources = [source] if isinstance(source, str) else list(source)
    if not sources:
        raise UserError("the list of data sources is empty; name at least one file, folder or hub dataset")
    located = [one if is_hub_id(one) else local_files(one) for one in sources]
    return _read_all(located, split, delimiter, on_error or _raise)


def is_hub_id(source: str) -> bool:
    """True if `source` names a hub dataset: shaped like an id, no data suffix, nothing local of that name."""
    if Path(source).suffix.lower() in SUFFIXES or not _HUB_ID.fullmatch(source):
        return False
    return not Path(source).exists()


def local_files(source: str) -> list[Path]:
    """The files that `source` (file, folder or glob) stands for, sorted. Raises `UserError` where there are none."""
    path = Path(source).expanduser()
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.suffix.lower() in SUFFIXES and f.is_file() and f.name[0] != ".")
        if not files:
            raise UserError(f"{path.resolve()}: no data file in this folder; supported: {' '.join(SUFFIXES)}")
        return files
    if not path.exists() and any(c in source for c in "*?["):
        # glob.glob takes absolute patterns and `**`, which Path.glob of the supported Pythons does not.
        found = glob(str(path), recursive=True)  # noqa: PTH207
        files = sorted(Path(f) for f in found if Path(f).suffix.lower() in SUFFIXES and Path(f).is_file())
        if not files:
            raise UserError(f"{source}: the pattern matches no data file; supported: {' '.join(SUFFIXES)}")
        return files
    if not path.exists():
        resolved = path.resolve()
        parent = next(p for p in resolved.parents if p.exists())
        raise UserError(f"{source}: path does not exist (looked for {resolved}; nearest existing parent: {parent})")
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: cannot read files of type {path.suffix!r}; supported: {' '.join(SUFFIXES)}")
    return [path]


def _raise(error: RowError) -> None:
    raise error


def _read_all(located: list[str | list[Path]], split: str, delimiter: str, on_error: OnError) -> Iterator[Row]:
    for one in located:
        if isinstance(one, str):
            yield from _read_hub(one, split)
            continue
        for path in one:
            suffix = path.suffix.lower()
            if suffix == ".csv":
                yield from _read_csv(path, delimiter, on_error)
            elif suffix == ".parquet":
                yield from _read_parquet(path)
            else:
                yield from _read_json(path, on_error)


def _text_lines(path: Path) -> Iterator[str]:
    """Physical lines, ends kept, decoded as UTF-8 whatever the locale says; a byte order mark is dropped."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise UserError(f"{path}:1: the file is UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8")
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}:{number}: not valid UTF-8 (byte 0x{line[error.start]:02x} at offset "
                    f"{offset + error.start}); convert the file, for example: iconv -f LATIN1 -t UTF-8"
                ) from None
            offset += len(line)
            yield text.removeprefix("\ufeff") if number == 1 else text


def _read_json(path: Path, on_error: OnError) -> Iterator[Row]:
    """JSON lines or one JSON document, told apart by the content: both suffixes are used for both in the wild."""
    first = next((line for line in _text_lines(path) if line.strip()), "")
    if not first.strip():
        return
    if _is_json(first.strip().removesuffix(",")):  # a comma after each object is a row error, told line by line
        # Lines that are each a list are bad rows; one such line alone is an array of rows.
        document = first.lstrip()[0] == "[" and sum(1 for line in _text_lines(path) if line.strip()) == 1
    else:
        document = first.lstrip()[0] == "[" or path.suffix.lower() == ".json"
    yield from (_read_document if document else _read_json_lines)(path, on_error)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _read_json_lines(path: Path, on_error: OnError) -> Iterator[Row]:
    for number, line in enumerate(_text_lines(path), start=1):
        text = line.strip()
        if not text:
            continue
        try:
            yield Row(_object(_parse(text, f"{path}:{number}"), text, f"{path}:{number}"), str(path), number)
        except RowError as error:
            on_error(error)


def _read_document(path: Path, on_error: OnError) -> Iterator[Row]:
    """A whole-file JSON array of objects (or one object), with the element number as its line."""
    text = "".join(_text_lines(path))
    document = _parse(text, str(path), whole_file=True)
    elements = document if isinstance(document, list) else [document]
    if elements and all(isinstance(e, dict) and "role" in e and "messages" not in e for e in elements):
        raise RowError(f"{path}:1", "a bare list of messages", advice='write {"messages": [...]}, one object a row')
    for number, element in enumerate(elements, start=1):
        try:
            quoted = "" if isinstance(element, dict) else str(element)
            yield Row(_object(element, quoted, f"{path}:{number}"), str(path), number)
        except RowError as error:
            on_error(error)


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


def _read_csv(path: Path, delimiter: str, on_error: OnError) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # the default of 128 KiB is shorter than a long document
    # strict: a quote that closes too early or never is an error, not text that swallows the following rows.
    reader = csv.reader(_text_lines(path), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        where = f"{path}:{reader.line_num + 1}"
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # Where a broken quote really ends is unknown, so the rest of the file cannot be trusted.
            raise RowError(where, "not valid CSV", str(error), 'quote text as "..." and double quotes inside') from None
        if not fields or (len(fields) == 1 and not fields[0].strip() and header is not None and len(header) > 1):
            continue
        if header is None:
            header = _checked_header(fields, where, delimiter)
        elif len(fields) != len(header):
            count = f"{len(fields)} field{'s' if len(fields) != 1 else ''}, header has {len(header)}"
            on_error(RowError(where, count, advice='quote the text: "a, b"', quoted=delimiter.join(fields)))
        else:
            yield Row(dict(zip(header, fields, strict=True)), str(path), line)


def _checked_header(header: list[str], where: str, delimiter: str) -> list[str]:
    if len(header) == 1:
        other = next((d for d in _OTHER_DELIMITERS if d != delimiter and d in header[0]), None)
        if other is not None:
            raise UserError(f"{where}: the only column found is {header[0]!r}; set data.delimiter: {other!r}")
    doubled = sorted({name for name in header if header.count(name) > 1})
    if doubled:
        raise UserError(f"{where}: duplicate column {doubled[0]!r} in the header {header}; give each its own name")
    return header


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(without_nulls(values), str(path), number)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: cannot be read as parquet after row {number} ({reason}); write it again") from None


def _read_hub(name: str, split: str) -> Iterator[Row]:
    import datasets

    try:
        data = datasets.load_dataset(name, split=split)
    except Exception as error:  # the hub client raises a dozen unrelated types for "offline" and "not found"
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{name}: cannot load this hub dataset, split {split!r} ({type(error).__name__}: {reason}); "
            "check the name and the network, or give a path that starts with ./ or /"
        ) from None
    for number, values in enumerate(data, start=1):
        yield Row(without_nulls(values), name, number)


def without_nulls(value: Any) -> Any:
    """`value` without null keys, at any depth: a table gives every row the union of all keys, filled with null."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
