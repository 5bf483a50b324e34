"""Checkpoint tensors: a plain safetensors file a rank, which the stock reader puts together again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
import xxhash
from safetensors.torch import load_file
from torch.distributed.checkpoint import CheckpointException, HuggingFaceStorageReader

from toolkit.checkpoint.shards import ShardWriter, WrittenFile, quietly, write_file

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


def some_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = {f"t.{dtype}": (torch.randn(3, 5) * 10).to(dtype) for dtype in DTYPES}
    return tensors | {"scalar": torch.tensor(7.0), "one": torch.ones(1), "strided": torch.arange(12.0).view(3, 4).t()}


def test_the_file_is_a_safetensors_file_with_the_bits_of_the_tensors(tmp_path: Path) -> None:
    tensors = some_tensors()
    file = write_file(tmp_path / "x.safetensors", {name: (t, [0] * t.ndim) for name, t in tensors.items()})
    read = load_file(tmp_path / "x.safetensors")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor), name
    content = (tmp_path / "x.safetensors").read_bytes()
    assert file == WrittenFile("x.safetensors", len(content), xxhash.xxh3_128(content).hexdigest())


def test_a_checkpoint_is_read_back_to_the_bit(tmp_path: Path) -> None:
    tensors, sealed = some_tensors(), []
    with quietly():
        dcp.save(tensors, storage_writer=ShardWriter(tmp_path / "c", sealed.extend), no_dist=True)
    assert [file.name for file in sealed] == ["shard-00001.safetensors"]
    into = {name: torch.zeros_like(t) for name, t in tensors.items()}
    with quietly():
        dcp.load(into, storage_reader=HuggingFaceStorageReader(str(tmp_path / "c")), no_dist=True)
    for name, tensor in tensors.items():
        assert torch.equal(into[name], tensor), name


def test_what_sealing_fails_with_is_told(tmp_path: Path) -> None:
    def seal(files: list[WrittenFile]) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointException, match="No space left") as info:
        dcp.save({"a": torch.ones(2)}, storage_writer=ShardWriter(tmp_path / "c", seal), no_dist=True)
    assert info.value.failures[0][0].errno == 28
