"""From what the user wrote to files that exist, or a data set of the hub."""

from __future__ import annotations

import re
from collections.abc import Iterable
from glob import glob
from pathlib import Path

from toolkit.data.sources.files import COMPRESSIONS, kind
from toolkit.data.sources.table_rows import is_saved_dataset
from toolkit.errors import UserError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".txt")
_SUPPORTED = f"{' '.join(SUFFIXES)}, also with {' '.join(COMPRESSIONS)}"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def is_hub_id(source: str) -> bool:
    """True if `source` can name a repository of the hub: shaped like an id, no data suffix, nothing local of that name."""
    if kind(Path(source)) in SUFFIXES or not _HUB_ID.fullmatch(source) or Path(source).exists():
        return False
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(source)
    except HFValidationError:
        return False
    return True


def is_dataset(source: str) -> bool:
    """True if the `datasets` library reads it: a hub name, or a folder that `save_to_disk` wrote."""
    return is_hub_id(source) or is_saved_dataset(Path(source).expanduser())


def local_files(source: str) -> list[Path]:
    """The files that `source` (file, folder or glob) stands for, sorted. Raises `UserError` where there are none."""
    path = Path(source).expanduser()
    if path.is_dir():
        files = _readable(f for f in path.iterdir() if f.name[0] != ".")
        if not files:
            raise UserError(f"{path.resolve()}: no data file in this folder; supported: {_SUPPORTED}")
        return files
    if not path.exists() and any(c in source for c in "*?["):
        # glob.glob takes absolute patterns and `**`, which Path.glob of the supported Pythons does not.
        files = _readable(map(Path, glob(str(path), recursive=True)))  # noqa: PTH207
        if not files:
            raise UserError(f"{source}: the pattern matches no data file; supported: {_SUPPORTED}")
        return files
    if not path.exists():
        resolved = path.resolve()
        parent = next(p for p in resolved.parents if p.exists())
        raise UserError(f"{source}: path does not exist (looked for {resolved}; nearest existing parent: {parent})")
    if kind(path) not in SUFFIXES:
        raise UserError(f"{path}: cannot read files of type {path.suffix!r}; supported: {_SUPPORTED}")
    return [path]


def _readable(files: Iterable[Path]) -> list[Path]:
    """The data files among these. Text files count only where there is nothing else: beside tables they are notes."""
    found = sorted(file for file in files if kind(file) in SUFFIXES and file.is_file())
    tables = [file for file in found if kind(file) != ".txt"]
    return tables or found
