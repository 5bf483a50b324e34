"""Tensors of all ranks as safetensors files in one folder, through `torch.distributed.checkpoint`.

Planning, removing duplicates between replicas, resharding and agreeing on a failure are the library's; so is reading. Its
own writers hold a second copy of everything in memory or write pickles, so this one streams: each rank writes one file,
tensor by tensor, computes its checksum on the way and syncs it to the disk. No pickle is ever written or read.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

_CHUNK_BYTES = 1 << 26
# How the format spells dtypes (https://huggingface.co/docs/safetensors/index#format).
_DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class WrittenFile:
    """A file of a checkpoint: its name, size and checksum (xxh3, 128 bits, hexadecimal)."""

    name: str
    bytes: int
    checksum: str


class ShardWriter(HuggingFaceStorageWriter):
    """Writes this rank's part of a plan. `seal` is called on the coordinator with all files when every rank has written
    its own; what it raises reaches all ranks, like a failure to write."""

    def __init__(
        self, folder: Path, seal: Callable[[list[WrittenFile]], None], beat: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(str(folder), save_distributed=True)
        self._folder, self._seal, self._beat = folder, seal, beat

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write one file; a rank whose tensors all lie on others writes none."""
        results = []
        if plan.items:
            tensors = {}
            for item in plan.items:
                tensor = planner.resolve_data(item)
                assert isinstance(tensor, torch.Tensor), f"{item.index.fqn} is not a tensor"
                tensors[item.index.fqn] = (tensor.detach(), list(item.index.offset or [0] * tensor.ndim))
            file = write_file(
                self._folder / f"shard-{plan.storage_data['shard_index']:05}.safetensors", tensors, self._beat
            )
            results = [WriteResult(item.index, file.bytes, file) for item in plan.items]
        written: Future[list[WriteResult]] = Future()
        written.set_result(results)
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, after all have written."""
        self._seal([part[0].storage_data for part in results if part])


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Around the library's save and load: on one process it warns that it is alone, which is no news."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def write_file(
    path: Path, tensors: dict[str, tuple[torch.Tensor, list[int]]], beat: Callable[[], None] = lambda: None
) -> WrittenFile:
    """Write tensors, each with the place of its first element in the whole tensor, and sync them to the disk."""
    header: dict[str, dict] = {
        "__metadata__": {
            "format": "pt",
            # What `HuggingFaceStorageReader` looks for.
            "DCP_SHARDING_INFO": json.dumps({name: {"saved_offsets": offset} for name, (_, offset) in tensors.items()}),
        }
    }
    end = 0
    for name, (tensor, _) in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest, size = xxhash.xxh3_128(), 0
    with path.open("wb") as file:
        for part in _pieces(len(text).to_bytes(8, "little") + text, tensors):
            file.write(part)
            digest.update(part)
            size += len(part)
            beat()
        file.flush()
        os.fsync(file.fileno())
    return WrittenFile(path.name, size, digest.hexdigest())


def _pieces(head: bytes, tensors: dict[str, tuple[torch.Tensor, list[int]]]) -> Iterator[bytes | memoryview]:
    yield head
    for tensor, _ in tensors.values():
        data = memoryview(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]
