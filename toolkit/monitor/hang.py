"""The end of a run that stands still: each rank writes its stacks and says where it is, one prints, all exit."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from torch.distributed import DistError

from toolkit.errors import HANG_EXIT_CODE, leave
from toolkit.monitor.board import Board, Entry
from toolkit.monitor.diagnosis import Place, diagnose, report
from toolkit.monitor.where import dump_collectives, dump_stacks, locate, main_frame

_ANSWER_SECONDS = 5.0
_VERDICT = "alarm/verdict"
_LOOK_SECONDS = 0.1


def answer(pulse: Entry, logs: Path) -> Entry:
    """Write the stacks of this process; returns its pulse with where its main thread is."""
    where = locate(main_frame())
    rank = pulse["rank"]
    head = (
        f"rank {rank} on {pulse['host']}, pid {os.getpid()}: {pulse['phase']} of step {pulse['step']}, micro-batch "
        f"{pulse['micro_batch']}, {pulse['silent']:.0f} s without a beat, at {where.place}"
    )
    try:
        dump_stacks(logs / f"rank-{rank}.txt", head)
        dump_collectives(logs / f"nccl-trace-rank-{rank}")
    except (OSError, RuntimeError) as error:  # the disk may be what hangs or is full: the diagnosis matters more
        where = where._replace(called_from=f"{where.called_from} (stacks not written: {error})")
    return pulse | where._asdict()


def end_together(board: Board, pulses: Mapping[int, Entry] | None = None, logs: Path | None = None) -> NoReturn:
    """End this process, once the rank that gives the alarm has printed the diagnosis. That one passes `pulses`, the latest
    of every rank, for those that do not answer."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    try:
        if pulses is not None:
            names = {rank: f"answer/{rank}" for rank in pulses}
            while len(found := board.read_all(names.values())) < len(names) and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
            places = [_place(found.get(name), pulses[rank]) for rank, name in names.items()]
            _print(places, logs)
            board.write(_VERDICT, {})
            time.sleep(1.0)  # a store in this process must outlive the others' last look
        else:
            while board.read(_VERDICT) is None and time.monotonic() < deadline + _ANSWER_SECONDS:
                time.sleep(_LOOK_SECONDS)
    except DistError:
        pass  # the others have ended
    leave(HANG_EXIT_CODE)


def end_alone(pulse: Entry, logs: Path, first: str) -> NoReturn:
    """End this process when the board does not answer: it lives in the launcher, or in rank 0, on the host `first`."""
    mine = answer(pulse, logs)
    os.write(2, (alone(mine, first) + f"; stacks: {logs}\n").encode())
    leave(HANG_EXIT_CODE)


def alone(mine: Entry, first: str) -> str:
    """What a rank says that has lost the board: where it is, and which host it cannot reach."""
    if mine["host"] == first:
        why = f"the store on this host, {first}, does not answer: its launcher or rank 0 is stopped or gone"
    else:
        why = (
            f"rank 0 on {first} cannot be reached: the network to that host is cut, the host is down, or its launcher or rank "
            "0 is stopped or gone"
        )
    return (
        f"hang: rank {mine['rank']} on {mine['host']} has not moved for {mine['silent']:.0f} s, in {mine['phase']} of step "
        f"{mine['step']} at {mine['place']}, and {why}"
    )


def _place(answered: Entry | None, seen: Entry) -> Place:
    known = answered or seen
    return Place(
        rank=known["rank"],
        host=known.get("host", "?"),
        device=known.get("device", "?"),
        phase=known.get("phase", "start"),
        step=known.get("step", 0),
        micro_batch=known.get("micro_batch", 0),
        silent=known["silent"],
        where=known.get("place", ""),
        called_from=known.get("called_from", ""),
        waiting=known.get("waiting", False),
        answers=answered is not None,
    )


def _print(places: list[Place], logs: Path | None) -> None:
    # One write to the descriptor: the main thread may hold the locks of sys.stderr, or of a progress bar around it.
    os.write(2, report(places, diagnose(places), str(logs)).encode())
