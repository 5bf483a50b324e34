"""A teacher's likeliest tokens of every labelled position of some rows, on disk, memory-mapped."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

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
        """Arrays in a new folder, with the room that they take. Raises OSError where there is none."""
        folder.mkdir(parents=True)
        for name, kind in _ARRAYS.items():
            file = folder / f"{name}.npy"
            np.lib.format.open_memmap(file, mode="w+", dtype=kind, shape=(labels, count))
            if hasattr(os, "posix_fallocate"):  # a mapped file that grows into a full disk ends the process by a signal
                with file.open("r+b") as opened:
                    os.posix_fallocate(opened.fileno(), 0, max(1, file.stat().st_size))

    @staticmethod
    def write(folder: Path, first: int, ids: np.ndarray, log_probs: np.ndarray) -> None:
        """Some positions, from `first` on."""
        for name, values in zip(_ARRAYS, (ids, log_probs), strict=True):
            np.lib.format.open_memmap(folder / f"{name}.npy", mode="r+")[first : first + len(values)] = values

    def of(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """(ids, log_probs) of the labelled positions of `rows`, in their order."""
        parts = [slice(self.offsets[row], self.offsets[row + 1]) for row in rows]
        ids, log_probs = (np.concatenate([array[part] for part in parts]) for array in (self.ids, self.log_probs))
        return torch.from_numpy(ids).long(), torch.from_numpy(log_probs)
