"""The end of a process that worked together with others, without an abort after all is done."""

from __future__ import annotations

import time
from pathlib import Path

import torch

_WORKER = "pt_gloo_runloop"  # the name that torch gives to the threads which carry out gloo's collectives


def leave_together() -> None:
    """Leave the process group; to be called before the interpreter ends.

    A worker thread of gloo tells those who wait that a collective is done, and lets go of its tensors after that. If they
    are Python's last, it needs the interpreter's lock, and a thread that asks for it while the interpreter ends aborts the
    process, with SIGABRT and all results on the disk. Leaving joins the threads of a group that nothing refers to; device
    meshes refer to theirs to the end, so their threads are given the time to finish.
    """
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        _wait_for_workers()


def _wait_for_workers(patience: float = 10.0) -> None:
    """Sleep, which frees the interpreter's lock, until all worker threads have been seen asleep twice; or for `patience`
    seconds."""
    end, quiet = time.monotonic() + patience, 0
    while quiet < 2 and time.monotonic() < end:
        time.sleep(0.01)
        quiet = quiet + 1 if not any(state == "R" for state in _worker_states()) else 0


def _worker_states() -> list[str]:
    """'R' for a worker that runs or wants to, 'S' for one that sleeps (proc(5)); empty where the system does not say."""
    states = []
    for task in Path("/proc/self/task").glob("*"):
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has ended in the meantime
            continue
        if name == _WORKER:
            states.append(rest.split()[0])
    return states
