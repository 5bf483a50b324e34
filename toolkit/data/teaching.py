"""A teacher's likeliest tokens of every labelled position of some rows, on disk, memory-mapped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

_ARRAYS: dict[str, type] = {"ids": np.int32, "log_probs": np.float32}


@dataclass(frozen=True)
class Teaching:
    """ids: [labelled tokens, k] int32; log_probs: the same of their log-probabilities, fp32; the likeliest first.

    offsets: [rows + 1]; those of row i are offsets[i] to offsets[i + 1] - 1.
    """

    ids: np.ndarray
    log_probs: np.ndarray
    offsets: np.ndarray

    @staticmethod
    def open(folder: Path, labels_per_row: np.ndarray) -> Teaching:
        """What `create` and `write` have left in `folder`."""
        ids, log_probs = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS)
        return Teaching(ids, log_probs, np.cumsum([0, *labels_per_row], dtype=np.int64))

    @staticmethod
    def create(folder: Path, labels: int, count: int) -> None:
        """Empty arrays in a new folder."""
        folder.mkdir(parents=True)
        for name, kind in _ARRAYS.items():
            np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=kind, shape=(labels, count))

    @staticmethod
    def write(folder: Path, first: int, ids: np.ndarray, log_probs: np.ndarray) -> None:
        """Some positions, from `first` on."""
        for name, values in zip(_ARRAYS, (ids, log_probs), strict=True):
            np.lib.format.open_memmap(folder / f"{name}.npy", mode="r+")[first : first + len(values)] = values

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids, log_probs) of the labelled positions of `rows`, in their order."""
        parts = [slice(self.offsets[row], self.offsets[row + 1]) for row in rows]
        return np.concatenate([self.ids[p] for p in parts]).astype(np.int64), np.concatenate(
            [self.log_probs[p] for p in parts]
        )
