"""Checkpoint folders: `OUTPUT/checkpoint-20`, complete by construction, found by number, checked by checksum."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from toolkit.checkpoint.shards import WrittenFile

MARKER = "checkpoint.json"
PARTIAL = ".partial"
_NAME = re.compile(r"checkpoint-(\d+)")
_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True)
class Checkpoint:
    """A folder that is called like a checkpoint.

    step: optimizer steps done. fault: why it cannot be used, None when nothing is known to be wrong.
    record: what the marker file says of the run (config, layout, data, versions, ...).
    """

    path: Path
    step: int
    record: dict[str, Any]
    files: tuple[WrittenFile, ...]
    fault: str | None

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(file.bytes for file in self.files)


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint after `step` optimizer steps goes."""
    return folder / f"checkpoint-{step}"


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """All checkpoints of a run by step, those with a fault included; nothing else that lies there."""
    found = (
        [path for path in folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)] if folder.is_dir() else []
    )
    return sorted(map(open_checkpoint, found), key=lambda one: one.step)


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the marker of a checkpoint folder and compare names and sizes; contents are for `wrong_files`."""
    match = _NAME.fullmatch(path.name)
    step = int(match[1]) if match else -1
    try:
        text = (path / MARKER).read_text(encoding="utf-8")
        body = json.loads(text)
        checksum = body.pop("checksum")
        files = tuple(WrittenFile(**file) for file in body.pop("files"))
        step = body["step"]
        fault = None if checksum == _checksum(body, files) else f"{MARKER} was changed after it was written"
    except FileNotFoundError:
        return Checkpoint(path, step, {}, (), f"{MARKER} is missing: it was not finished")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Checkpoint(path, step, {}, (), f"{MARKER} cannot be read")
    for file in files if fault is None else ():
        inside = path / file.name
        if not inside.resolve().is_relative_to(path.resolve()):
            fault = f"{MARKER} names {file.name}, which is not inside the folder"
        elif not inside.is_file():
            fault = f"{file.name} is missing"
        elif inside.stat().st_size != file.bytes:
            fault = f"{file.name} has {inside.stat().st_size:,} bytes instead of {file.bytes:,}"
        if fault:
            break
    # The reader takes every file of this kind that it finds.
    strange = {file.name for file in path.glob("*.safetensors")} - {file.name for file in files}
    if strange and fault is None:
        fault = f"{min(strange)} is not one of the files that were written"
    return Checkpoint(path, step, body, files, fault)


def wrong_files(checkpoint: Checkpoint, files: Iterable[WrittenFile]) -> list[str]:
    """Those of `files` whose contents do not have the checksum of the marker, or cannot be read."""
    wrong = []
    for file in files:
        try:
            right = file_checksum(checkpoint.path / file.name) == file.checksum
        except OSError:
            right = False
        if not right:
            wrong.append(file.name)
    return wrong


def seal(partial: Path, files: list[WrittenFile], record: dict[str, Any]) -> Path:
    """Turn a folder with all its files into a checkpoint: the marker last, everything on the disk, then the name."""
    record = json.loads(json.dumps(record))  # as it will be read again
    names = {file.name for file in files}
    for small in sorted(path for path in partial.rglob("*") if path.is_file()):
        name = str(small.relative_to(partial))
        if name not in names:
            _sync(small)
            files = [*files, WrittenFile(name, small.stat().st_size, file_checksum(small))]
    files = sorted(files, key=lambda file: file.name)
    marker = partial / MARKER
    body = {**record, "files": [vars(file) for file in files], "checksum": _checksum(record, tuple(files))}
    marker.write_text(json.dumps(body, indent=1), encoding="utf-8")
    _sync(marker)
    for inside in sorted({path.parent for path in partial.rglob("*")}):
        _sync(inside)
    final = partial.with_name(partial.name.removesuffix(PARTIAL))
    partial.rename(final)
    _sync(final.parent)
    return final


def file_checksum(path: Path) -> str:
    """xxh3 of the contents, 128 bits, hexadecimal."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _checksum(record: dict[str, Any], files: tuple[WrittenFile, ...]) -> str:
    """Of the marker's own contents."""
    return xxhash.xxh3_128(json.dumps([record, [vars(file) for file in files]], sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
