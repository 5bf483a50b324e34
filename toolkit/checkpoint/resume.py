"""Which checkpoint a run goes on from: chosen by the main process, its contents checked by all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from toolkit.checkpoint.folder import Checkpoint, find_checkpoints, open_checkpoint, wrong_files
from toolkit.checkpoint.retention import set_aside
from toolkit.errors import UserError
from toolkit.layout import Layout


def named_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint that the user named. Raises UserError when it is none, or not whole."""
    if str(path).lower() in ("true", "yes"):
        raise UserError("resume: true is not a choice; auto goes on with the run in output_dir if there is one")
    if not path.is_dir():
        raise UserError(f"resume: {path.absolute()} does not exist; give auto, never or a checkpoint's folder")
    checkpoint = open_checkpoint(path)
    if checkpoint.fault:
        inside = [one.path.name for one in find_checkpoints(path) if one.fault is None]
        hint = f"; did you mean {path / inside[-1]}?" if inside else ""
        raise UserError(f"resume: {path}: {checkpoint.fault}{hint}")
    return checkpoint


def verified(
    layout: Layout, checkpoint: Checkpoint, *, fall_back: bool, say: Callable[[str], None]
) -> Checkpoint | None:
    """The checkpoint, if every file has the contents that were written; the ranks share the reading.

    With `fall_back` an older one takes the place of a damaged one; None when there is none. Raises UserError otherwise.
    """
    candidate: Checkpoint | None = checkpoint
    while candidate is not None:
        mine = candidate.files[layout.accelerator.process_index :: layout.accelerator.num_processes]
        wrong = layout.gather_objects(wrong_files(candidate, mine))
        if not wrong:
            return candidate
        fault = f"{wrong[0]} does not have the contents that were written"
        if not fall_back:
            raise UserError(f"resume: {candidate.path}: {fault}; give another checkpoint, or auto")
        say(f"{candidate.path.name} is not used: {fault}")
        damaged = candidate

        def next_one(damaged: Checkpoint = damaged) -> Checkpoint | None:
            set_aside(damaged)
            return newest_whole(damaged.path.parent, say)

        candidate = layout.on_main(next_one)
    return None


def newest_whole(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole by names and sizes. Those with a fault are named and set aside."""
    newest = None
    for checkpoint in find_checkpoints(folder):
        if checkpoint.fault is None:
            newest = checkpoint
        else:
            place = set_aside(checkpoint)
            say(f"{checkpoint.path.name} is not used: {checkpoint.fault}; it is now {place.name}")
    return newest


def set_later_aside(folder: Path, step: int, say: Callable[[str], None]) -> None:
    """Checkpoints after `step` belong to what the run was going to be; it now goes on from an earlier one."""
    for checkpoint in find_checkpoints(folder):
        if checkpoint.step > step:
            say(f"resume: {checkpoint.path.name} lies after step {step}; it is now {set_aside(checkpoint).name}")
