"""Where the main thread of this process is: the line that people know, and the stacks of all threads in a file."""

from __future__ import annotations

import faulthandler
import sys
import sysconfig
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

_LIBRARIES = tuple(
    f"{p}/"
    for p in (Path(torch.__file__).parent, Path(torch.__file__).parents[1] / "accelerate", sysconfig.get_path("stdlib"))
)


class Where(NamedTuple):
    """place: "file:line function", innermost of those that are neither torch's, accelerate's nor Python's own; called_from:
    the one outside it; waiting: True when the innermost of all is torch's or accelerate's."""

    place: str
    called_from: str
    waiting: bool


def main_frame() -> FrameType | None:
    """The innermost frame of the main thread."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def locate(frame: FrameType | None) -> Where:
    """Where a thread is, from its innermost frame."""
    if frame is None:
        return Where("?", "?", False)
    innermost: FrameType = frame
    known: list[FrameType] = []
    while frame is not None and len(known) < 2:
        if not _is_library(frame):
            known.append(frame)
        frame = frame.f_back
    places = [_describe(one) for one in known or [innermost]]
    name = innermost.f_code.co_filename
    return Where(places[0], places[1] if len(places) > 1 else "", name.startswith(_LIBRARIES[:2]))


def dump_stacks(path: Path, head: str) -> None:
    """Append `head`, the main thread's frames with their source, and the stacks of all threads, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{head}\n\nmain thread:\n{''.join(traceback.format_stack(main_frame()))}\nall threads:\n")
        file.flush()
        faulthandler.dump_traceback(file, all_threads=True)
        file.write("\n")


def dump_collectives(path: Path) -> None:
    """The recent collectives of NCCL, for torch's flight-recorder analyzer; nothing where NCCL is not in use."""
    dump = getattr(torch._C._distributed_c10d, "_dump_nccl_trace", None)
    if dump is not None and torch.distributed.is_initialized() and "nccl" in torch.distributed.get_backend():
        path.write_bytes(dump())


def _is_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    installed = "/site-packages/" in name or "/dist-packages/" in name
    return name.startswith("<") or name.startswith(_LIBRARIES[:2]) or (name.startswith(_LIBRARIES[2]) and not installed)


def _describe(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    packages = [parent for parent in path.parents if parent.name in ("site-packages", "dist-packages")]
    for parent in (*packages[:1], Path.cwd()):
        if path.is_absolute() and path.is_relative_to(parent):
            path = path.relative_to(parent)
    return f"{path}:{frame.f_lineno} {frame.f_code.co_name}"
