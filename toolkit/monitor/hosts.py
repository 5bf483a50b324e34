"""Which host each rank is on: a message about a machine that is lost names it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolkit.route import address_towards


@dataclass(frozen=True)
class Host:
    """name: what the machine calls itself; address: the one by which it reaches the first node, empty where there is none."""

    name: str
    address: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.address})" if self.address else self.name


@dataclass(frozen=True)
class Hosts:
    """The hosts of all ranks, in rank order."""

    by_rank: tuple[Host, ...]

    @property
    def several(self) -> bool:
        """True when ranks are on more than one host."""
        return len(set(self.by_rank)) > 1

    def of(self, rank: int) -> str:
        """Host of a rank, for people: with its address when there are others."""
        host = self.by_rank[rank]
        return str(host) if self.several else host.name

    def named_in(self, text: str) -> str:
        """Whose addresses an error of a library's speaks of, "10.0.0.2 is node2, of rank 1"; empty where it speaks of none."""
        if not self.several:
            return ""
        found = [host for host in dict.fromkeys(self.by_rank) if host.address and _speaks_of(text, host.address)]
        return "; ".join(f"{host.address} is {host.name}, of {names(self._ranks(host))}" for host in found)

    def _ranks(self, host: Host) -> list[int]:
        return [rank for rank, other in enumerate(self.by_rank) if other == host]


def this_host() -> Host:
    """The machine of this process; its address is that of the way to MASTER_ADDR."""
    first, name = os.environ.get("MASTER_ADDR", ""), socket.gethostname()
    return Host(name, address_towards(first) if first else "")


def gather_hosts(gather_objects: Callable[[list[Host]], list[Host]]) -> Hosts:
    """The hosts of all ranks. `gather_objects` is that of the layout: all processes must call this together."""
    return Hosts(tuple(gather_objects([this_host()])))


def names(ranks: Sequence[int]) -> str:
    """Ranks in words: "rank 3", "ranks 0, 1, 2", the first eight of many."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return "ranks " + ", ".join(map(str, ranks[:8])) + (f", ... ({len(ranks)} of them)" if len(ranks) > 8 else "")


def _speaks_of(text: str, address: str) -> bool:
    text = text.replace("::ffff:", "")  # before an address of version 4 where version 6 is in use
    return re.search(rf"(?<![\w.:]){re.escape(address)}(?![\w.]|:[\da-f]*:)", text) is not None
