"""Which checkpoints are kept: the newest ones and the best one. Nothing else in the folder is ever touched."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from toolkit.checkpoint.folder import PARTIAL, Checkpoint, find_checkpoints

_GOING = ".deleted"


def superseded(checkpoints: Sequence[Checkpoint], keep_last: int, best_step: int | None) -> list[Checkpoint]:
    """Those to remove: neither among the `keep_last` newest nor the best. One with a fault is not counted and not
    removed: it is no copy of anything, and somebody may want to look at it."""
    whole = sorted((c for c in checkpoints if c.fault is None), key=lambda c: c.step)
    return [c for c in whole[: max(0, len(whole) - keep_last)] if c.step != best_step]


def retire(folder: Path, keep_last: int, best_step: int | None) -> None:
    """Remove superseded checkpoints. They lose their name first, so that a half-removed one is never taken for whole."""
    for checkpoint in superseded(find_checkpoints(folder), keep_last, best_step):
        going = checkpoint.path.with_name(checkpoint.path.name + _GOING)
        shutil.rmtree(going, ignore_errors=True)
        checkpoint.path.rename(going)
        shutil.rmtree(going, ignore_errors=True)


def remove_leftovers(folder: Path) -> list[str]:
    """Remove what a killed run was writing or removing; returns the names."""
    left = [path for end in (PARTIAL, _GOING) for path in folder.glob(f"checkpoint-*{end}") if path.is_dir()]
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return sorted(path.name for path in left)


def set_aside(checkpoint: Checkpoint) -> Path:
    """Give a checkpoint another name, so that a new one can take its place; nothing of it is lost."""
    number, place = 0, checkpoint.path.with_name(checkpoint.path.name + ".aside")
    while place.exists():
        number += 1
        place = checkpoint.path.with_name(f"{checkpoint.path.name}.aside{number}")
    checkpoint.path.rename(place)
    return place
