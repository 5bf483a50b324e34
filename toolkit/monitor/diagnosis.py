"""Who holds up a run that stands still, and why: from the places of all ranks. Pure, so that every case can be tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.monitor.hosts import names

# Places of one step in their order; forward and backward alternate with the micro-batches.
_ORDER: dict[str, float] = {
    "start": 0, "reference": 0.5, "teacher": 0.5, "restore": 1, "data": 2, "look": 2.5, "forward": 3, "backward": 3,
    "reduce": 4, "update": 5, "evaluate": 6, "save": 7, "export": 8, "generate": 9,
}  # fmt: skip
_COLLECTIVE = {
    "backward": "the sum of the gradients",
    "reduce": "the sum of the losses",
}
_MEETING = {
    "reference", "teacher", "look", "forward", "backward", "reduce", "evaluate", "generate", "save", "restore", "export",
}  # fmt: skip
_REMEDY = {
    "start": "look at that line: a slow disk, a download, or a lock that another process holds",
    "data": "look at that line: a slow or hanging file system, an endless loop over rows, a lock",
    "forward": "look at that line, or run that step on one process",
    "backward": "look at that line: a backward function of your own, a hook, or a device that hangs (dmesg, nvidia-smi)",
    "update": "look at that line, and whether the device hangs (dmesg, nvidia-smi)",
    "save": "look at the file system of output_dir: full, slow or not answering",
    "restore": "look at the file system of the checkpoint: slow or not answering",
    "export": "look at the file system of output_dir: full, slow or not answering",
}
_ANY_REMEDY = "look at that line"
_LOST_REMEDY = (
    "look at that process on that host (a debugger, SIGSTOP, the out-of-memory killer: dmesg) and whether the node "
    "answers"
)
_UNREACHABLE_REMEDY = (
    "see whether that host is up and answers on its address (ping), whether its interface and the switch between the hosts "
    "are up, and what became of its processes (dmesg, the scheduler's log)"
)
_SKIPPED_REMEDY = (
    "look for a collective, or code that holds one, that runs on some ranks only: an `if` on the rank, on the data or on "
    "time"
)
_NETWORK_REMEDY = (
    "check the network between the hosts and its interface (NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME; NCCL_DEBUG=INFO "
    "says more), and whether the stacks show that ranks run different collectives"
)


@dataclass(frozen=True)
class Place:
    """Where a rank was when the run stood still.

    silent: seconds without a beat of its main thread, or of its watchdog where it does not answer; where, called_from:
    lines of code; waiting: True when the innermost frame of all is a library's, as in a collective on CPUs; answers: False
    when its watchdog does not answer either.
    """

    rank: int
    host: str
    device: str
    phase: str
    step: int
    micro_batch: int
    silent: float
    where: str = ""
    called_from: str = ""
    waiting: bool = False
    answers: bool = True

    @property
    def position(self) -> tuple[int, float, int]:
        """How far the rank is, to be compared with that of others."""
        order: float = _ORDER.get(self.phase, 2)
        if self.step == 0 and self.phase == "data":
            order = 20  # after an evaluation before the first step
        if self.step == 0 and self.phase == "generate":
            order = 0.5  # answers before training
        return (self.step, order, 2 * self.micro_batch + (self.phase == "backward"))

    def described(self) -> str:
        """The phase, with what is known about its place in the run."""
        step = f" of step {self.step}" if self.phase in ("forward", "backward", "reduce", "update", "data") else ""
        after = f" after step {self.step}" if not step and self.phase != "start" else ""
        return self.phase + (f" of micro-batch {self.micro_batch}" if self.micro_batch else "") + step + after


@dataclass(frozen=True)
class Diagnosis:
    """ranks: who holds the others up, empty when nobody can be singled out; cause and remedy: a sentence each."""

    ranks: tuple[int, ...]
    cause: str
    remedy: str


def diagnose(places: Sequence[Place]) -> Diagnosis:
    """The likely cause. A rank that is behind holds up those that wait for it; one that is ahead of ranks that wait inside
    a collective has not taken part in it. Only places are known, so this is a reading of them, not a proof."""
    lost = [place for place in places if not place.answers]
    if lost:
        return _not_answering(lost, {place.host for place in places if place.answers})
    first = min(places, key=lambda place: place.position)
    behind = [place for place in places if place.position == first.position]
    ahead = [place for place in places if place.position != first.position]
    if not ahead:
        return _all_alike(behind)
    last = max(ahead, key=lambda place: place.position)
    if _passed_by(first, ahead) and len(behind) >= len(ahead):
        return Diagnosis(
            _ranks(ahead),
            f"{_names(ahead)} {_does(ahead, 'is', 'are')} ahead, in {last.described()}{_at(last)}, and did not take part "
            f"in {_COLLECTIVE[first.phase]} in which {_names(behind)} {_does(behind, 'waits', 'wait')} "
            f"({first.described()}{_at(first)})",
            _SKIPPED_REMEDY,
        )
    return Diagnosis(
        _ranks(behind),
        f"{_names(behind)} {_does(behind, 'is', 'are')} stuck in {first.described()}{_at(first)}, and "
        f"{_names(ahead)} {_does(ahead, 'waits', 'wait')} for it in {last.described()}",
        _REMEDY.get(first.phase, _ANY_REMEDY),
    )


def _not_answering(lost: Sequence[Place], answering: set[str]) -> Diagnosis:
    """Ranks that do not answer; `answering` are the hosts of which any rank does."""
    by_host: dict[str, list[Place]] = {}
    for place in lost:
        by_host.setdefault(place.host, []).append(place)
    if len(answering | by_host.keys()) == 1:
        shown, on = [_names(lost)], f" on {lost[0].host}"
    else:
        shown, on = [f"{_names(some)} on {host}" for host, some in by_host.items()], ""
    said = " and ".join(shown[:4]) + (f" and those of {len(shown) - 4} other hosts" if len(shown) > 4 else "")
    seen = f"(last seen in {lost[0].described()}{on}, {lost[0].silent:.0f} s ago)"
    if answering and not answering & by_host.keys():
        return Diagnosis(
            _ranks(lost),
            f"{said} cannot be reached {seen}: the network to {_does(shown, 'that host', 'those hosts')} is cut, the host is "
            f"down, or {_does(lost, 'its process is', 'their processes are')} stopped or killed",
            _UNREACHABLE_REMEDY,
        )
    return Diagnosis(
        _ranks(lost),
        f"{said} {_does(lost, 'does', 'do')} not answer any more {seen}: the process is stopped or killed, or its node is gone",
        _LOST_REMEDY,
    )


def _passed_by(first: Place, ahead: Sequence[Place]) -> bool:
    """True when those ahead are past a collective that `first` is still in: nobody leaves one before all have come."""
    if first.phase == "reduce":
        return True
    # Between micro-batches gradients need not be summed; past the last of them they have been.
    after = (first.step, _ORDER["reduce"], 0)
    return first.phase == "backward" and all(place.position >= after for place in ahead)


def _all_alike(places: Sequence[Place]) -> Diagnosis:
    """All ranks are at one place of the run."""
    one = places[0]
    if len(places) == 1:
        return Diagnosis(
            (one.rank,), f"the process is stuck in {one.described()}{_at(one)}", _REMEDY.get(one.phase, _ANY_REMEDY)
        )
    lines = {place.where for place in places}
    if one.phase in _MEETING and len(lines) == 1:
        cause = f"all ranks wait in {one.described()}{_at(one)}: the network, or collectives that do not match"
        return Diagnosis((), cause, _NETWORK_REMEDY)
    if len(lines) == 1:
        return Diagnosis((), f"all ranks are stuck in {one.described()}{_at(one)}", _REMEDY.get(one.phase, _ANY_REMEDY))
    busy = [place for place in places if not place.waiting]
    if one.phase in _MEETING and 0 < len(busy) < len(places):
        wait = next(place for place in places if place.waiting)
        return Diagnosis(
            _ranks(busy),
            f"{_names(busy)} {_does(busy, 'is', 'are')} stuck in {one.described()}{_at(busy[0])}, while "
            f"the others wait in a collective, or another call of a library's, from{_at(wait).removeprefix(' at')}",
            _REMEDY.get(one.phase, _ANY_REMEDY),
        )
    # The line at which fewest ranks are is the odd one out; of two ranks neither is.
    rare = min(lines, key=lambda line: sum(place.where == line for place in places))
    odd = [place for place in places if place.where == rare]
    if 2 * len(odd) < len(places):
        rest = next(place for place in places if place.where != rare)
        return Diagnosis(
            _ranks(odd),
            f"all ranks are in {one.described()}, but {_names(odd)} {_does(odd, 'is', 'are')}{_at(odd[0])} and the others"
            f"{_at(rest)}",
            _SKIPPED_REMEDY,
        )
    cause = f"all ranks are in {one.described()}, at different lines{_at(one)} and{_at(places[-1])}"
    return Diagnosis((), cause, _SKIPPED_REMEDY)


def report(places: Sequence[Place], found: Diagnosis, logs: str) -> str:
    """The text that ends a run which stood still: cause, remedy, a table of all ranks, the folder of the stacks."""
    rows = [("rank", "host", "device", "phase", "step", "micro-batch", "silent", "where")]
    for place in sorted(places, key=lambda place: place.rank):
        line = place.where + (f"  from {place.called_from}" if place.called_from else "")
        rows.append(
            (
                f"{place.rank}{' <--' if place.rank in found.ranks else ''}", place.host, place.device, place.phase,
                str(place.step), str(place.micro_batch or "-"), f"{place.silent:.0f} s",
                line if place.answers else "does not answer",
            )
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    table = [
        "  " + "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
    shortest = min(place.silent for place in places)
    return "\n".join(
        [
            f"hang: no rank has moved for {shortest:.0f} s" if all(p.answers for p in places) else "hang:",
            f"  cause: {found.cause}",
            f"  what to do: {found.remedy}",
            *table,
            f"  stacks of all threads: {logs}",
            "",
        ]
    )


def _ranks(places: Sequence[Place]) -> tuple[int, ...]:
    return tuple(sorted(place.rank for place in places))


def _names(places: Sequence[Place]) -> str:
    return names(_ranks(places))


def _does(places: Sequence[object], singular: str, plural: str) -> str:
    return singular if len(places) == 1 else plural


def _at(place: Place) -> str:
    return f" at {place.where}" if place.where else ""
