"""Errors for people: one message, once, with the exit code that says whose mistake it was."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol

BUG_EXIT_CODE = UPLOAD_EXIT_CODE = 1
USER_ERROR_EXIT_CODE = 2
NUMERICAL_ERROR_EXIT_CODE = 3
HANG_EXIT_CODE = 4
STOPPED_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later

# How long a rank that is not the main one waits before it prints its own error. The main process nearly always fails for
# the same reason; it prints, exits, and the launcher ends the others before this runs out. So a reason is read once.
_OTHER_RANKS_WAIT_SECONDS = 3.0
# The same on another node, whose launcher does not end this process; the main process may be slower to find the reason.
_OTHER_NODES_WAIT_SECONDS = 20.0
# How long a process that fails may take to compare its reason with those of others before it prints and ends anyway.
_AGREE_SECONDS = 12.0


class UserError(ValueError):
    """Something the user can fix. The message is one line: what is wrong, where (file, line, key), what to do."""


class NumericalError(ArithmeticError):
    """A non-finite loss or gradient: the run stopped before it could touch the weights."""


class Stopped(Exception):
    """The run was asked to stop, saved its state and can be resumed."""


class UploadError(Exception):
    """The run is complete, and its model could not be sent where it was to go."""


class Witness(Protocol):
    """Knows of the failures of all ranks; the watchdog brings one as soon as ranks can talk to each other."""

    def tell(self, message: str, exit_code: int) -> bool:
        """Tell the other ranks that this one fails. True when this process is the one to print the reason."""
        ...

    def printed(self) -> None:
        """The reason is printed: the other ranks may end."""
        ...

    def failed_elsewhere(self) -> bool:
        """True when another rank has failed, so that this process is ended within seconds."""
        ...

    def named_in(self, text: str) -> str:
        """Which hosts, and ranks on them, an error of a library's speaks of by their addresses; empty for none."""
        ...


# A folder, named by whoever started the launcher, into which a process that fails writes its exit code.
EXIT_FOLDER = "TOOLKIT_EXIT_FOLDER"

witness: Witness | None = None
# Of a user's mistake that ends a process before it has done anything: takes back what was begun, such as an empty folder.
undo: Callable[[], None] | None = None
failing = False  # this process is on its way out, with a reason of its own


def is_main_process() -> bool:
    """True for global rank 0, from the launcher's environment, so that it can be asked before torch is loaded."""
    return int(os.environ.get("RANK", "0")) == 0


def ending() -> bool:
    """True when this process fails, or is about to be ended because another rank has failed."""
    return witness is not None and (failing or witness.failed_elsewhere())


def fail(message: str, exit_code: int, details: str = "") -> NoReturn:
    """Print `details` and `message` to stderr, from the rank that failed first, and end this process with `exit_code`.

    Where all ranks fail alike it is the main process that prints. `os._exit` is deliberate: an orderly exit of one rank
    would wait in the tear-down of a process group whose other members are gone, or still inside a collective.
    """
    global failing
    failing = True
    text = details + (message if is_main_process() else f"[rank {os.environ['RANK']}] {message}")
    if witness is None or exit_code == STOPPED_EXIT_CODE:
        spoken = False
        if not is_main_process():
            if threading.current_thread() is threading.main_thread():
                # The launcher ends this process meanwhile; a handler that asks for a save must not stand in the way.
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if _on_another_node() and witness is None:
                spoken = _first_launcher_ends(_OTHER_NODES_WAIT_SECONDS)
            else:
                time.sleep(_OTHER_RANKS_WAIT_SECONDS)
        # With a witness, all ranks have agreed to stop.
        if is_main_process() or (witness is None and not spoken):
            _print(text)
        leave(exit_code)
    # Others may be out of reach for ever; then this process says what it knows.
    late = threading.Timer(_AGREE_SECONDS, _print_and_end, (text, exit_code))
    late.daemon = True
    late.start()
    if witness.tell(message, exit_code):
        late.cancel()
        _print(text)
        witness.printed()
    leave(exit_code)


def _on_another_node() -> bool:
    """True where torchrun has started this process on another node than the main one."""
    return os.environ.get("GROUP_RANK", "0") != "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _first_launcher_ends(seconds: float) -> bool:
    """True when the launcher of the first node, which holds the store, ends within this time: a process there has failed
    and has said why."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=2).close()
        except ConnectionError:
            return True
        except (OSError, KeyError, ValueError):
            return False
        time.sleep(0.5)
    return False


def leave(exit_code: int) -> NoReturn:
    """End this process now, with an exit code that also reaches who started the launcher: accelerate passes none on."""
    if folder := os.environ.get(EXIT_FOLDER):
        with contextlib.suppress(OSError):
            (Path(folder) / f"rank-{os.environ.get('RANK', '0')}").write_text(str(exit_code), encoding="utf-8")
    os._exit(exit_code)


def exit_with_message(function: Callable[[], None]) -> None:
    """Run `function`; a user's mistake ends in exit code 2, a numerical abort in 3, a stop that was asked for in 75, a failed
    upload in 1, each with its message alone. Anything else is a bug: 1, with the traceback of the rank where it began."""
    try:
        function()
    except UserError as error:
        if undo is not None:
            with contextlib.suppress(OSError):
                undo()
        fail(f"error: {error}", USER_ERROR_EXIT_CODE)
    except NumericalError as error:
        fail(f"stopped: {error}", NUMERICAL_ERROR_EXIT_CODE)
    except Stopped as error:
        fail(f"stopped: {error}", STOPPED_EXIT_CODE)
    except UploadError as error:
        fail(f"failed: {error}", UPLOAD_EXIT_CODE)
    except Exception as error:
        if witness is None:
            raise
        summary = "".join(traceback.format_exception_only(error)).strip()
        fail(f"failed: {summary}{_hint(summary)}", BUG_EXIT_CODE, traceback.format_exc())


def _hint(summary: str) -> str:
    """A rank that was killed can tell nothing; the first that others know of it is a broken connection."""
    broken = ("Connection closed by peer", "Connection reset by peer", "remote process exited", "Broken pipe")
    if not any(sign in summary for sign in broken):
        return ""
    hosts = witness.named_in(summary) if witness is not None else ""
    where = f" ({hosts})" if hosts else ""
    return (
        f"\nAnother process has ended without a word{where}, as one does that is killed for memory: see dmesg and the exit "
        "codes"
    )


def _print(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


def _print_and_end(text: str, exit_code: int) -> None:
    _print(text)
    leave(exit_code)
