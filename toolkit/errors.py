"""Errors for people: one message, once, with the exit code that says whose mistake it was."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

USER_ERROR_EXIT_CODE = 2
NUMERICAL_ERROR_EXIT_CODE = 3
HANG_EXIT_CODE = 4
STOPPED_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later

# How long a rank that is not the main one waits before it prints its own error. The main process nearly always fails for
# the same reason; it prints, exits, and the launcher ends the others before this runs out. So a reason is read once.
_OTHER_RANKS_WAIT_SECONDS = 3.0


class UserError(ValueError):
    """Something the user can fix. The message is one line: what is wrong, where (file, line, key), what to do."""


class NumericalError(ArithmeticError):
    """A non-finite loss or gradient: the run stopped before it could touch the weights."""


class Stopped(Exception):
    """The run was asked to stop, saved its state and can be resumed."""


def is_main_process() -> bool:
    """True for global rank 0, from the launcher's environment, so that it can be asked before torch is loaded."""
    return int(os.environ.get("RANK", "0")) == 0


def fail(message: str, exit_code: int) -> NoReturn:
    """Print `message` to stderr, from one rank where they all fail alike, and end this process with `exit_code`.

    `os._exit` is deliberate: an orderly exit of one rank would wait in the tear-down of a process group whose other
    members are gone, or still inside a collective.
    """
    if not is_main_process():
        if threading.current_thread() is threading.main_thread():
            # The launcher ends this process meanwhile; a handler that asks for a save must not stand in the way.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(_OTHER_RANKS_WAIT_SECONDS)
        message = f"[rank {os.environ['RANK']}] {message}"
    sys.stdout.flush()
    print(message, file=sys.stderr, flush=True)
    os._exit(exit_code)


def exit_with_message(function: Callable[[], None]) -> None:
    """Run `function`; a user's mistake ends in exit code 2, a numerical abort in 3, a stop that was asked for in 75, each
    with its message alone."""
    try:
        function()
    except UserError as error:
        fail(f"error: {error}", USER_ERROR_EXIT_CODE)
    except NumericalError as error:
        fail(f"stopped: {error}", NUMERICAL_ERROR_EXIT_CODE)
    except Stopped as error:
        if not is_main_process():
            os._exit(STOPPED_EXIT_CODE)  # all ranks have agreed on it, one tells
        fail(f"stopped: {error}", STOPPED_EXIT_CODE)
