"""The watchdog: one thread per rank that tells the others where this rank is, and ends a run that stands still.

It sees to four things, all through a board that the ranks share: a run in which nothing moves any more ends with a
diagnosis; a rank that fails ends the others with its reason; slow ranks and growing memory are named. It needs no
collective, and costs the main thread nothing but its beats.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import DistError

from toolkit import errors
from toolkit.config import WatchConfig
from toolkit.layout import COLLECTIVE_TIMEOUT, Layout
from toolkit.monitor.board import Entry, open_board
from toolkit.monitor.failures import ALARM, FIRST, Failures, end_with
from toolkit.monitor.hang import answer, end_alone, end_together
from toolkit.monitor.heartbeat import Heartbeat
from toolkit.monitor.hosts import gather_hosts
from toolkit.monitor.memory import MemoryWatch
from toolkit.monitor.probe import PROBE_EVERY, probe
from toolkit.monitor.stragglers import Figures, Stragglers

_PUBLISH_SECONDS = 5.0
_LOOK_SECONDS = 1.0
# Until the first step data is prepared and weights are read, which beats nothing and may take very much longer.
_START_TIMES = 6.0
_FRESH_SECONDS = 1.0


class Watchdog:
    """Watches from `start` to `stop`; ends the process with HANG_EXIT_CODE, or another rank's exit code.

    A run stands still when no rank has had a beat for `watch.hang_timeout` (six times that in the phase `start`): a rank
    that waits while another one saves or generates is not hung. A rank whose watchdog has been silent for that long ends
    the run too. Time in which a whole process was suspended does not count.
    """

    def __init__(
        self, config: WatchConfig, layout: Layout, beat: Heartbeat, logs: Path, say: Callable[[str], None]
    ) -> None:
        self._limit, self._beat, self._logs, self._say = 60 * config.hang_timeout, beat, logs, say
        self._rank, self._size = layout.accelerator.process_index, layout.accelerator.num_processes
        self._sharded, self._device = layout.is_fsdp, layout.device
        self._interval = min(_PUBLISH_SECONDS, self._limit / 10) if self._limit else _PUBLISH_SECONDS
        self._tick = min(_LOOK_SECONDS, self._interval)
        self._board = open_board()
        self._failures = Failures(self._board.again(), self._rank)
        self._hosts = gather_hosts(layout.gather_objects)
        self._wake, self._looked, self._stopped = threading.Event(), threading.Event(), threading.Event()
        self._beats, self._silent, self._published, self._rounds = -1, 0.0, -1.0, 0
        self._ending = False  # this thread is about to end the process
        self._seen: dict[int, Entry] = {}  # latest pulses of other ranks
        self._unchanged: dict[int, float] = {}  # for how long they are the same
        self._stragglers = Stragglers(config.straggler_factor)
        self._probe: float | None = None
        self._memory, self._note, self._said = MemoryWatch(layout.device, self._take_note), "", {""}
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> Watchdog:
        """Watch from now on, until the interpreter ends in order or `stop` is called."""
        errors.witness = self
        self._thread.start()
        if self._size > 1 and self._limit:
            threading.Thread(target=self._watch_the_board, name="watchdog's watchdog", daemon=True).start()
        atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """Leave the others without being missed."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._wake.set()
            self._thread.join(timeout=2 * _LOOK_SECONDS)
            errors.witness = None

    def step(self, step: int) -> None:
        """After an optimizer step, on the main thread: what must be measured while nothing else runs."""
        self._memory.step(step)
        if step % PROBE_EVERY == 0 and self._size > 1 and self._device.type != "cpu":
            self._probe = probe(self._device)

    def tell(self, message: str, exit_code: int) -> bool:
        """See `errors.Witness`."""
        return self._failures.tell(message, exit_code)

    def printed(self) -> None:
        """See `errors.Witness`."""
        self._failures.printed()

    def failed_elsewhere(self) -> bool:
        """See `errors.Witness`. Asks the thread to look now."""
        if not self._thread.is_alive():
            return False
        self._looked.clear()
        self._wake.set()
        # A thread that has found a failure does not come back from it.
        return not self._looked.wait(_FRESH_SECONDS) and self._ending

    def named_in(self, text: str) -> str:
        """See `errors.Witness`."""
        return self._hosts.named_in(text)

    def _take_note(self, text: str) -> None:
        self._note = text

    def _watch(self) -> None:
        last = time.monotonic()
        try:
            while not self._stopped.is_set():
                now = time.monotonic()
                # After a suspension the clock has jumped; nothing was silent meanwhile that could have moved.
                passed, last = min(now - last, 2 * self._tick), now
                try:
                    self._round(passed, now)
                    self._rounds += 1
                except DistError:
                    pass  # `_watch_the_board` judges that
                self._looked.set()
                self._wake.wait(self._tick)
                self._wake.clear()
        except Exception as error:
            # A fault of the watchdog's must not end a run that goes well.
            print(f"warning: rank {self._rank} is watched no more: {error!r}", file=sys.__stderr__, flush=True)
        try:
            self._board.write(f"pulse/{self._rank}", self._pulse() | {"phase": "end"})
        except DistError:
            return  # the others are gone

    def _round(self, passed: float, now: float) -> None:
        beats = self._beat.pulse.beats
        self._silent = self._silent + passed if beats == self._beats else 0.0
        self._beats = beats
        first = self._board.read(FIRST)
        if first is not None and first["rank"] != self._rank and not errors.failing:
            self._ending = True
            end_with(self._board, first, self._rank)
        alarm = None if errors.failing else self._board.read(ALARM)
        if alarm is not None:
            self._end_hang(alarm)
        if now - self._published >= self._interval:
            self._publish(now)
        if self._limit:
            for rank in self._unchanged:
                self._unchanged[rank] += passed

    def _publish(self, now: float) -> None:
        self._published = now
        self._board.write(f"pulse/{self._rank}", self._pulse())
        # The lowest rank that is alive looks after all; so a rank reads those below it until it finds one alive.
        for rank in range(self._rank):
            self._read([rank])
            if not self._gone(rank):
                return
        self._read([rank for rank in range(self._size) if rank != self._rank])
        self._look_for_a_hang()
        self._look_for_stragglers()

    def _pulse(self) -> Entry:
        pulse, times = self._beat.pulse, self._beat.times()
        figures = None
        if times is not None:
            compute = None if self._sharded else times.compute
            figures = [self._beat.steps, times.total, times.data, compute, self._probe]
        return {
            "rank": self._rank, "host": self._hosts.of(self._rank), "device": str(self._device), "phase": pulse.phase,
            "step": pulse.step, "micro_batch": pulse.micro_batch, "silent": self._silent, "round": self._rounds,
            "figures": figures, "note": self._note,
        }  # fmt: skip

    def _read(self, ranks: list[int]) -> None:
        found = self._board.read_all(f"pulse/{rank}" for rank in ranks)
        for rank in ranks:
            pulse = found.get(f"pulse/{rank}")
            if pulse is not None and pulse["round"] != self._seen.get(rank, {}).get("round"):
                self._unchanged[rank] = 0.0
            self._unchanged.setdefault(rank, 0.0)
            if pulse is not None:
                self._seen[rank] = pulse

    def _gone(self, rank: int) -> bool:
        pulse = self._seen.get(rank)
        return bool(self._limit and self._unchanged[rank] > self._allowed(pulse)) or _ended(pulse)

    def _allowed(self, pulse: Entry | None) -> float:
        # A step that this rank has made was made by all, whatever they were last seen at.
        starting = (pulse is None or pulse["phase"] == "start") and not self._beat.steps
        return self._limit * (_START_TIMES if starting else 1.0)

    def _look_for_a_hang(self) -> None:
        if not self._limit:
            return
        mine = self._pulse()
        others = {rank: self._seen.get(rank) for rank in range(self._size) if rank != self._rank}
        lost = [rank for rank, pulse in others.items() if self._gone(rank) and not _ended(pulse)]
        pulses = [mine, *(pulse for rank, pulse in others.items() if pulse and rank not in lost and not _ended(pulse))]
        allowed = max(map(self._allowed, pulses))
        if lost or min(pulse["silent"] for pulse in pulses) > allowed:
            self._board.write_first(ALARM, {"by": self._rank})

    def _end_hang(self, alarm: Entry) -> None:
        self._ending = True
        mine = answer(self._pulse(), self._logs)
        self._board.write(f"answer/{self._rank}", mine)
        if alarm["by"] != self._rank:
            end_together(self._board)
        # For ranks that do not answer there is what they were last seen at.
        pulses = {
            rank: self._seen.get(rank, {"rank": rank, "host": self._hosts.of(rank)})
            | {"silent": self._unchanged.get(rank, 0.0)}
            for rank in range(self._size)
            if not _ended(self._seen.get(rank))
        }
        end_together(self._board, pulses, self._logs)

    def _look_for_stragglers(self) -> None:
        pulses = {self._rank: self._pulse(), **{r: p for r, p in self._seen.items() if not _ended(p)}}
        for rank, pulse in pulses.items():
            if pulse["note"] not in self._said:
                self._said.add(pulse["note"])
                self._say(f"warning: rank {rank} ({pulse['host']}): {pulse['note']}")
        figures = {rank: Figures(*pulse["figures"]) for rank, pulse in pulses.items() if pulse["figures"]}
        if len(figures) == self._size:
            for slow in self._stragglers.look(figures):
                pulse = pulses[slow.rank]
                self._say(slow.described(f"{pulse['host']}, {pulse['device']}"))

    def _watch_the_board(self) -> None:
        """Ends this process alone when the store does not answer and the main thread has not moved for too long."""
        rounds, beats, waited = -1, -1, 0.0
        while not self._stopped.wait(self._tick):
            pulse = self._beat.pulse
            moved = rounds != self._rounds or beats != pulse.beats
            rounds, beats, waited = self._rounds, pulse.beats, 0.0 if moved else waited + self._tick
            # Later than the diagnosis of all ranks together would take.
            if not self._ending and waited > self._limit * (_START_TIMES if pulse.phase == "start" else 1.0) + 10:
                end_alone(self._pulse() | {"silent": waited}, self._logs, self._hosts.of(0))


def _ended(pulse: Entry | None) -> bool:
    return pulse is not None and pulse["phase"] == "end"


def collective_timeout(config: WatchConfig) -> timedelta:
    """How long a collective must wait at least: the watchdog, which names who is missing, comes first in every phase."""
    return max(COLLECTIVE_TIMEOUT, timedelta(minutes=_START_TIMES * config.hang_timeout + 5))


def record_collectives(logs: Path) -> None:
    """Before the process group is made: let NCCL keep its recent collectives, and write them beside the stacks when it
    gives up itself. What the user has set stays. (Names of torch 2.13; older ones begin with TORCH_NCCL_.)"""
    if not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
        return
    for name, older, value in (
        ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "", "1"),
        ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", str(logs / "nccl-trace-rank-")),
    ):
        if older not in os.environ:
            os.environ.setdefault(name, value)
