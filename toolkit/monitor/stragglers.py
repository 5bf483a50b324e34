"""Ranks that are slower than the others, step after step. Pure: figures of all ranks in, findings out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

_STEPS_BETWEEN_LOOKS = 20  # as many as the medians are taken over, so that no look sees a step of the one before
_LOOKS_TO_NAME = 4  # in a row; as many without it are a recovery
_SHARE_OF_STEP = 0.1  # less than this of a step is not worth a word


@dataclass(frozen=True)
class Figures:
    """Of one rank: optimizer steps so far, and medians in seconds over the recent ones.

    total: the whole step, which is the same on all ranks, since they meet in it. data: waiting for its own micro-batches.
    compute: forward and backward without the last backward, in which a rank waits for the others; None where that cannot
    be told from waiting. probe: a fixed piece of work on the device; None where it is not done.

    What this sees: slow reading and tokenizing, on any layout; slow Python or launching of work, and on CPUs slow
    computing, under DDP; slow devices, by the probe, on any layout with accelerators. What it does not see: a slow
    network, sharded layouts on CPUs but for their data, and slowness in the last backward of a step alone.
    """

    steps: int
    total: float
    data: float
    compute: float | None = None
    probe: float | None = None


@dataclass(frozen=True)
class Straggler:
    """A rank that is slower than the others: in what, its seconds and theirs (median)."""

    rank: int
    part: str
    seconds: float
    others: float

    def described(self, place: str) -> str:
        """One line; `place` is the host and device."""
        times = f"{self.seconds / self.others:.1f} times" if self.others > 0 else "against"
        return (
            f"warning: rank {self.rank} ({place}) is slower than the others: {self.part} takes "
            f"{self.seconds:.3g} s of its steps, {times} the others' {self.others:.3g} s"
        )


class Stragglers:
    """Names a rank when it takes `factor` times the median of the others, in four looks in a row, and then not again
    before it has recovered."""

    def __init__(self, factor: float) -> None:
        self._factor, self._looked_at = factor, 0
        self._slow: dict[int, int] = {}  # looks in a row, negative without
        self._named: set[int] = set()

    def look(self, figures: Mapping[int, Figures]) -> list[Straggler]:
        """Who is to be named now. Looks only after some steps of all ranks; cheap to call more often."""
        if not self._factor or len(figures) < 2:
            return []
        steps = min(one.steps for one in figures.values())
        if steps < self._looked_at + _STEPS_BETWEEN_LOOKS:
            return []
        self._looked_at = steps
        found = []
        for rank in figures:
            straggler, run = self._judge(rank, figures), self._slow.get(rank, 0)
            self._slow[rank] = max(run, 0) + 1 if straggler else min(run, 0) - 1
            if straggler and self._slow[rank] >= _LOOKS_TO_NAME and rank not in self._named:
                self._named.add(rank)
                found.append(straggler)
            elif self._slow[rank] <= -_LOOKS_TO_NAME:
                self._named.discard(rank)
        return found

    def _judge(self, rank: int, figures: Mapping[int, Figures]) -> Straggler | None:
        mine = figures[rank]
        others = [one for number, one in figures.items() if number != rank]
        theirs = statistics.median(_own(one) for one in others)
        if _own(mine) > self._factor * theirs and _own(mine) - theirs > _SHARE_OF_STEP * mine.total:
            parts = {
                "waiting for data": (mine.data, statistics.median(one.data for one in others)),
                "computing": (mine.compute or 0.0, statistics.median(one.compute or 0.0 for one in others)),
            }
            part = max(parts, key=lambda name: parts[name][0] - parts[name][1])
            return Straggler(rank, part, *parts[part])
        probes = [one.probe for one in others if one.probe is not None]
        if mine.probe is not None and probes and mine.probe > self._factor * statistics.median(probes):
            return Straggler(rank, "a fixed piece of work on its device", mine.probe, statistics.median(probes))
        return None


def _own(one: Figures) -> float:
    return one.data + (one.compute or 0.0)
