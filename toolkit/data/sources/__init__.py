"""Rows from files and hub datasets, value for value: nothing is retyped, dropped or repaired on the way.

Local files are read by orjson, `csv` and `pyarrow`, not by table readers that guess types: "NA", "00123" and
"2024-05-01" are answers people write, and they stay the strings they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from toolkit.config import DataConfig, SourceConfig
from toolkit.data.rows import Row, RowError
from toolkit.data.sources.csv_rows import read_csv
from toolkit.data.sources.files import kind
from toolkit.data.sources.json_rows import read_json
from toolkit.data.sources.locate import is_dataset, local_files
from toolkit.data.sources.source import Block, Source
from toolkit.data.sources.table_rows import load_dataset, read_dataset, read_parquet
from toolkit.data.sources.text_rows import read_text
from toolkit.errors import UserError

OnError = Callable[[RowError], None]


def find_sources(config: DataConfig, key: str) -> list[Source]:
    """The sources of `data.train` or `data.eval` (`key`), each with the defaults of the data section filled in.

    Raises `UserError` before any row is read: for paths that do not exist, folders without data, equal names.
    """
    given = getattr(config, key)
    listed = given if isinstance(given, list) else [given]
    if not listed:
        raise UserError(f"data.{key}: the list of data sources is empty; name at least one file, folder or hub dataset")
    split = config.train_split if key == "train" else config.eval_split
    sources = []
    for one in listed:
        spec = SourceConfig(path=one) if isinstance(one, str) else one
        if not spec.path:
            raise UserError(f"data.{key}: a source has no path; give a file, a folder, a glob or a hub name")
        defaults = {
            name: getattr(spec, name) if getattr(spec, name) is not None else value
            for name, value in {
                "split": split,
                "columns": config.columns,
                "delimiter": config.delimiter,
                "encoding": config.encoding,
                "sample_by": config.sample_by,
                "max_rows": config.max_rows,
            }.items()
        }
        sources.append(_source(replace(spec, **defaults)))
    return _named(sources, key)


def _source(spec: SourceConfig) -> Source:
    path = str(spec.path)
    name = spec.name or Path(path).name.split(".")[0] or Path(path).parent.name
    if is_dataset(path):
        return Source(name, spec, (), dataset=path)
    return Source(name, spec, tuple(local_files(path)))


def _named(sources: list[Source], key: str) -> list[Source]:
    """With names that differ: the folder is put before a file's name where two are alike."""
    names = [source.name for source in sources]
    found = []
    for source in sources:
        name, parent = source.name, Path(str(source.spec.path)).absolute().parent.name
        if names.count(name) > 1 and not source.spec.name:
            name = f"{parent}-{name}"
        found.append(replace(source, name=name))
    again = sorted({s.name for s in found if [t.name for t in found].count(s.name) > 1})
    if again:
        raise UserError(f"data.{key}: two sources are named {again[0]!r}; set name: on one of them")
    return found


def read_blocks(source: Source, streaming: bool = False) -> Iterator[Block]:
    """The rows of `source` in order, in blocks that can be parsed elsewhere. `max_rows` is the caller's affair."""
    spec = source.spec
    if source.dataset is not None:
        yield from read_dataset(load_dataset(spec, streaming), source.dataset)
    for path in source.files:
        what = kind(path)
        if what in (".csv", ".tsv"):
            yield from read_csv(path, spec.encoding, spec.delimiter or ("\t" if what == ".tsv" else ","))
        elif what == ".parquet":
            yield from read_parquet(path)
        elif what == ".txt":
            yield from read_text(path, spec.encoding, spec.sample_by or "line")
        else:
            yield from read_json(path, spec.encoding, spec.field)


def read_rows(source: Source, on_error: OnError | None = None) -> Iterator[Row]:
    """Iterate over the rows of `source`. With `on_error`, a bad row is handed to it and reading goes on; else raised."""
    for block in read_blocks(source):
        for row in block.rows():
            if isinstance(row, Row):
                yield row
            elif on_error is None:
                raise row
            else:
                on_error(row)
