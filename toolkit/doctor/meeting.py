"""Ranks tell each other things before a process group exists, through the launcher's key-value store.

A process group that cannot form says little and waits long. The store needs one connection from each rank to the main
process only, so that what is wrong with all other connections can still be told.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Protocol

from toolkit.doctor.facts import Place

_POLL_SECONDS = 0.05
_LAST_WORD_SECONDS = 3.0


class Unreachable(Exception):
    """The main process cannot be reached, or has gone."""


class _Store(Protocol):
    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


class Meeting:
    """A board on which every rank pins notes, JSON under a name, and reads those of others."""

    def __init__(self, place: Place, store: _Store) -> None:
        self.place = place
        self._store = store

    @property
    def is_main(self) -> bool:
        """True on the rank that collects, judges and prints."""
        return self.place.rank == 0

    def tell(self, name: str, content: Any, rank: int | None = None) -> None:
        """Pin `content` under `name` and this rank. rank: another one, to pin for all as the main process does."""
        self._do(lambda: self._store.set(f"{name}/{self.place.rank if rank is None else rank}", json.dumps(content)))

    def hear(self, name: str, rank: int, until: float) -> Any:
        """What `rank` pinned under `name`, or None when it has not by `until` (time.monotonic)."""
        return self.collect(name, [rank], until).get(rank)

    def collect(self, name: str, ranks: Iterable[int], until: float) -> dict[int, Any]:
        """What each of `ranks` pinned under `name`, without those that have not by `until` (time.monotonic)."""
        missing, found = list(ranks), {}
        while True:
            for rank in list(missing):
                if self._do(lambda key=f"{name}/{rank}": self._store.check([key])):  # type: ignore[misc]
                    content = self._do(lambda key=f"{name}/{rank}": self._store.get(key))  # type: ignore[misc]
                    found[rank] = json.loads(content)
                    missing.remove(rank)
            if not missing or time.monotonic() > until:
                return found
            time.sleep(_POLL_SECONDS)

    def _do(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except RuntimeError as error:  # torch's DistError and its kin
            raise Unreachable(str(error).splitlines()[0]) from None


class _Alone(dict[str, bytes]):
    """The store of a single process."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def meet(place: Place, seconds: float) -> Meeting:
    """Join the others. Raises Unreachable when the main process does not answer within `seconds`."""
    if place.world_size == 1:
        return Meeting(place, _Alone())
    from torch.distributed import PrefixStore, TCPStore

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # As torch's env:// rendezvous: under torchrun its agent has the store, else the first rank. In the latter case the
    # process group will share the server that is made here.
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = TCPStore(
            address,
            port,
            place.world_size,
            is_master=not agent and place.rank == 0,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        raise Unreachable(
            f"{address}:{port}, the address of the main process, does not answer within {seconds:.0f} s: "
            f"{str(error).splitlines()[0]}"
        ) from None
    # A restarted group must not read the notes of the one before.
    return Meeting(place, PrefixStore(f"doctor/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/", store))


def part(meeting: Meeting, name: str) -> None:
    """The main process leaves last, since it may hold the store; nobody waits for one that is gone."""
    meeting.tell(name, True)
    if meeting.is_main:
        meeting.collect(name, range(meeting.place.world_size), time.monotonic() + _LAST_WORD_SECONDS)
