"""What a check says, and how the odd one out among ranks is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from toolkit.doctor.facts import Facts

Level = Literal["ok", "warning", "fault"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "fault")
_MOST_NAMED = 4


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    name: "area.check". level: ok; warning, it works but not as anybody wants; fault, a run would fail or be wrong.
    what: what was found. remedy: what to do about it, empty where all is well.
    """

    name: str
    level: Level
    what: str
    remedy: str = ""

    @property
    def area(self) -> str:
        """The first part of the name."""
        return self.name.partition(".")[0]


def who(ranks: Sequence[Facts]) -> str:
    """Ranks for people: "rank 3 on host-b", "ranks 2, 3 on host-b"; of many the first few."""
    by_host: dict[str, list[int]] = {}
    for one in ranks:
        by_host.setdefault(one.host, []).append(one.rank)
    parts = []
    for host, numbers in list(by_host.items())[:_MOST_NAMED]:
        shown = ", ".join(map(str, numbers[:_MOST_NAMED])) + (", ..." if len(numbers) > _MOST_NAMED else "")
        parts.append(f"rank{'s' if len(numbers) > 1 else ''} {shown} on {host}")
    more = len(by_host) - _MOST_NAMED
    return "; ".join(parts) + (f"; {more} more hosts" if more > 0 else "")


def first_of_each_node(facts: Sequence[Facts]) -> list[Facts]:
    """The lowest rank of every node, in the order of nodes."""
    first: dict[int, Facts] = {}
    for one in sorted(facts, key=lambda f: f.rank):
        first.setdefault(one.node, one)
    return [first[node] for node in sorted(first)]


def compare(
    name: str, label: str, facts: Sequence[Facts], value: Callable[[Facts], str], level: Level, remedy: str
) -> Finding:
    """Ok when all ranks have the same value; else `level`, with those that differ from the most frequent one."""
    values = [value(one) for one in facts]
    usual = Counter(values).most_common(1)[0][0]
    odd: dict[str, list[Facts]] = {}
    for one, found in zip(facts, values, strict=True):
        if found != usual:
            odd.setdefault(found, []).append(one)
    if not odd:
        return Finding(name, "ok", f"{label} {usual}")
    different = "; ".join(f"{found} on {who(ranks)}" for found, ranks in odd.items())
    return Finding(name, level, f"{label} {usual}, but {different}", remedy)


def size(amount: float) -> str:
    """Bytes in binary units for people, as "64 MiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.3g} {unit}" if amount < 100 else f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:,.3g} TiB"
