"""First reason first: a rank that fails tells the others, which end without burying its reason under their own."""

from __future__ import annotations

import os
import time

from torch.distributed import DistError

from toolkit import errors
from toolkit.errors import NUMERICAL_ERROR_EXIT_CODE
from toolkit.monitor.board import Board, Entry

FIRST, PRINTED, ALARM = "failure", "failure/printed", "alarm"
_FOR_THE_MAIN_PROCESS = 2.0  # seconds in which the main process may fail alike; then it prints
_FOR_THE_REASON = 5.0  # seconds in which the rank that failed first prints its reason
_LOOK_SECONDS = 0.05


class Failures:
    """What a failing main thread says and asks (`errors.Witness`); `board` is its alone.

    The first failure on the board is the reason of the run's end; any other is taken for its consequence.
    """

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank = board, rank

    def tell(self, message: str, exit_code: int) -> bool:
        """See `errors.Witness`."""
        mine: Entry = {"rank": self._rank, "message": message, "exit_code": exit_code}
        try:
            if self._board.read(ALARM) is not None:
                # A hang is being reported; the watchdog's threads end all processes.
                time.sleep(_FOR_THE_REASON)
                return False
            self._board.write(f"failed/{self._rank}", mine)
            first = self._board.write_first(FIRST, mine)
            if self._rank == 0:
                if first["rank"] == 0 or (alike(first, mine) and self._board.read(PRINTED) is None):
                    return True
                if self._wait(PRINTED, _FOR_THE_REASON) is None:
                    _say_for(first)
                return False
            if first["rank"] == self._rank:
                theirs = self._wait("failed/0", _FOR_THE_MAIN_PROCESS)
                if theirs is None or not alike(mine, theirs):
                    return True
            self._wait(PRINTED, _FOR_THE_REASON)
            return False
        except DistError:  # the store is gone, nobody else can be asked
            return True

    def printed(self) -> None:
        """See `errors.Witness`."""
        try:
            self._board.write(PRINTED, {"rank": self._rank})
        except DistError:
            return  # nobody is left to be told

    def _wait(self, name: str, seconds: float) -> Entry | None:
        deadline = time.monotonic() + seconds
        while (found := self._board.read(name)) is None and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return found


def alike(one: Entry, other: Entry) -> bool:
    """True when two ranks fail for one reason. All ranks judge a bad step by the same figures."""
    return one["message"] == other["message"] or (one["exit_code"] == other["exit_code"] == NUMERICAL_ERROR_EXIT_CODE)


def end_with(board: Board, first: Entry, rank: int) -> None:
    """Called by the watchdog's thread when another rank has failed: leave it time to print, then end this process.

    Returns, leaving the end to the main thread, when that is failing itself.
    """
    deadline = time.monotonic() + _FOR_THE_REASON
    while (printed := board.read(PRINTED)) is None and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    if errors.failing:
        return
    if printed is None and rank == 0:
        _say_for(first)
    errors.leave(first["exit_code"])


def _say_for(first: Entry) -> None:
    """Print the reason of a rank that could not do so itself."""
    os.write(2, f"[rank {first['rank']}] {first['message']}\n".encode())
