"""A request to stop, by SIGTERM or SIGUSR1 or the launcher's death, that the loop heeds between two steps."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType

from toolkit.errors import STOPPED_EXIT_CODE, ending, is_main_process, leave

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_LOOK_SECONDS = 1.0
_ONE_REQUEST_SECONDS = 2.0


class StopRequest:
    """Set by a signal. Before `guard` is on there is nothing to save, and a signal ends the process at once.

    The first signal asks to save and end within `grace_seconds`, after which the process ends as it is; so does a second
    signal. The launcher's death counts as a signal, since nobody would be left to pass one on.
    """

    def __init__(self, grace_seconds: float) -> None:
        self._grace, self._since = grace_seconds, 0.0
        self._guarded = self._finishing = False
        self.reason: str | None = None
        self._parent = os.getppid()

    def install(self) -> None:
        """Take the signals over and look after the launcher. Main thread only."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        if "WORLD_SIZE" in os.environ or "ACCELERATE_MIXED_PRECISION" in os.environ:  # there is a launcher
            threading.Thread(target=self._look_after_launcher, name="launcher", daemon=True).start()

    def guard(self) -> None:
        """From now on there is something to save."""
        self._guarded = True

    def finishing(self) -> None:
        """The last step is done and the model is being written: a request to stop has come too late to be heeded."""
        self._finishing = True

    @property
    def requested(self) -> bool:
        """True once this process was asked to stop."""
        return self.reason is not None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._ask(signal.Signals(number).name)

    def _ask(self, reason: str) -> None:
        if ending():
            return  # torchrun passes on that a rank has failed: its reason is told, and there is no next step
        if not self._guarded:
            self._end(f"{reason}: ended before there was anything to save")
        if self.reason is not None:
            # torchrun passes on what a scheduler has sent to every process already; that is not a second request.
            if time.monotonic() - self._since > _ONE_REQUEST_SECONDS:
                self._end(f"{reason} after {self.reason}: ended at once, nothing saved")
            return
        self.reason, self._since = reason, time.monotonic()
        if self._finishing:
            self._say(f"{reason}: the last step is done, writing the model")
            return
        self._say(f"{reason}: saving after this step, then ending (within {self._grace:g} s)")
        timer = threading.Timer(
            self._grace, self._end, (f"{reason}: not saved within watch.stop_grace_seconds ({self._grace:g} s)",)
        )
        timer.daemon = True
        timer.start()

    def _end(self, message: str) -> None:
        self._say(f"stopped: {message}")
        leave(STOPPED_EXIT_CODE)

    def _say(self, message: str) -> None:
        if is_main_process():
            print(message, file=sys.stderr, flush=True)

    def _look_after_launcher(self) -> None:
        while os.getppid() == self._parent:
            time.sleep(_LOOK_SECONDS)
        if self.reason is None:
            self._ask("the launcher is gone")
