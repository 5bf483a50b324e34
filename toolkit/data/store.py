"""Tokenized rows of one source on disk: flat arrays that are written once and memory-mapped by every reader."""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from toolkit.data.tokenizing import TokenBlock
from toolkit.errors import UserError

_REPORT = "report.json"
_ARRAYS: dict[str, Any] = {
    "ids": np.int32,
    "supervised": np.bool_,
    "lengths": np.int32,
    "labels": np.int32,
    "branches": np.int32,
    "values": np.float32,
    "files": np.int32,
    "lines": np.int64,
}


@dataclass(frozen=True)
class TokenStore:
    """Rows end to end.

    ids: [tokens] int32; supervised: [tokens] bool, False for the first token of a row, which nothing predicts.
    offsets: [rows + 1] int64; row i is ids[offsets[i]:offsets[i + 1]]. labels: [rows] tokens learnt.
    branches: [rows, 2] where the two answers of a pair begin in its row, zeros in other rows; see `pairs`.
    values: [rows] what a row is judged to be, besides its tokens: 1 for a desirable answer, 0 for another; NaN without one.
    files, lines: [rows] where each row came from: `paths[files[i]]`, line `lines[i]` (1-based).
    """

    ids: np.ndarray
    supervised: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray
    branches: np.ndarray
    values: np.ndarray
    files: np.ndarray
    lines: np.ndarray
    paths: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def origin(self, row: int) -> str:
        """`FILE:LINE` of a row."""
        return f"{self.paths[self.files[row]] if self.paths else 'row'}:{self.lines[row]}"


class StoreWriter:
    """Appends blocks to a folder; what is in memory does not grow."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._files: dict[str, BinaryIO] = {name: (folder / name).open("wb") for name in _ARRAYS}

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        for file in self._files.values():
            file.close()

    def append(self, block: TokenBlock) -> None:
        """Write a block. Raises `UserError` when the disk is full."""
        try:
            for name, file in self._files.items():
                file.write(np.ascontiguousarray(getattr(block, name), dtype=_ARRAYS[name]).tobytes())
        except OSError as error:
            raise _unwritable(self._folder, error) from None

    def finish(self, report: dict[str, Any]) -> None:
        """Write the report, after all arrays."""
        try:
            for file in self._files.values():
                file.flush()
            (self._folder / _REPORT).write_text(json.dumps(report, indent=1), encoding="utf-8")
        except OSError as error:
            raise _unwritable(self._folder, error) from None


def _unwritable(folder: Path, error: OSError) -> UserError:
    what = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
    return UserError(f"{folder.parent}: cannot write tokenized data: {what}; set data.cache_dir to a place with room")


def is_complete(folder: Path) -> bool:
    """True for a folder that was written to its end."""
    return (folder / _REPORT).is_file()


def read_report(folder: Path) -> dict[str, Any]:
    """What `finish` was given."""
    return json.loads((folder / _REPORT).read_text(encoding="utf-8"))


def open_store(folder: Path, paths: tuple[str, ...]) -> TokenStore:
    """The rows in `folder`, memory-mapped; `paths` are the files they were made of, where those lie now."""
    arrays = {name: _mapped(folder / name, dtype) for name, dtype in _ARRAYS.items()}
    offsets = np.zeros(len(arrays["lengths"]) + 1, dtype=np.int64)
    np.cumsum(arrays["lengths"], out=offsets[1:])
    if offsets[-1] != len(arrays["ids"]) or len(arrays["ids"]) != len(arrays["supervised"]):
        raise UserError(f"{folder}: tokenized data is damaged; remove that folder, it will be made again")
    rest = {name: arrays[name] for name in ("ids", "supervised", "labels", "values", "files", "lines")}
    return TokenStore(offsets=offsets, branches=arrays["branches"].reshape(-1, 2), paths=paths, **rest)


def _mapped(file: Path, dtype: Any) -> np.ndarray:
    if file.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(file, dtype=dtype, mode="r")


def store_of(block: TokenBlock, paths: tuple[str, ...] = ()) -> TokenStore:
    """A block in memory as a store."""
    offsets = np.concatenate([[0], np.cumsum(block.lengths, dtype=np.int64)])
    return TokenStore(
        block.ids,
        block.supervised,
        offsets,
        block.labels,
        block.branches,
        block.values,
        block.files,
        block.lines,
        paths,
    )


def with_paths(store: TokenStore, paths: tuple[str, ...]) -> TokenStore:
    """The same rows, said to come from other files."""
    return replace(store, paths=paths)
