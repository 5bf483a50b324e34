"""Rows of tables with types of their own: Parquet files, data sets of the hub and those saved to disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.config import SourceConfig
from toolkit.data.rows import Row
from toolkit.data.sources.source import Block, blocks_of
from toolkit.errors import UserError


def read_parquet(path: Path) -> Iterator[Block]:
    """Blocks of rows, read a thousand at a time."""
    yield from blocks_of(_parquet_rows(path), size=path.stat().st_size)


def _parquet_rows(path: Path) -> Iterator[Row]:
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


def is_saved_dataset(folder: Path) -> bool:
    """True for a folder that `Dataset.save_to_disk` wrote."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def load_dataset(spec: SourceConfig, streaming: bool = False) -> Any:
    """The data set that `spec.path`, a hub name or a folder of `save_to_disk`, stands for. Raises `UserError`."""
    import datasets

    split, name = spec.split or "train", str(spec.path)
    try:
        if Path(name).is_dir():
            saved = datasets.load_from_disk(name)
            return saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        options = {"streaming": True} if streaming else {}
        return datasets.load_dataset(name, spec.config, split=split, revision=spec.revision, **options)
    except Exception as error:  # the hub client raises a dozen unrelated types for "offline" and "not found"
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{name}: cannot load this hub dataset, split {split!r} ({type(error).__name__}: {reason}); "
            "check the name and the network, or give a path that starts with ./ or /"
        ) from None


def read_dataset(data: Any, name: str) -> Iterator[Block]:
    """Blocks of rows of a loaded data set."""
    yield from blocks_of(Row(without_nulls(values), name, number) for number, values in enumerate(data, start=1))


def without_nulls(value: Any) -> Any:
    """`value` without null keys, at any depth: a table gives every row the union of all keys, filled with null."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
