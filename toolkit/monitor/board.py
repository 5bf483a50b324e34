"""A board that all ranks write on and read: small JSON entries in the store through which the process group met."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_TIMEOUT = timedelta(seconds=10)

Entry = dict[str, Any]


class Board:
    """Entries by name. Each thread needs a board of its own (`again`): a client serves one request at a time, and a
    request to a store whose process is stopped never returns.

    Raises torch.distributed.DistError when the store is gone.
    """

    def __init__(self, store: dist.Store) -> None:
        self._client = store
        # A launcher that starts workers again keeps its store: what their predecessors wrote must not be read.
        self._store = dist.PrefixStore(f"toolkit/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        self._there: set[str] = set()

    def again(self) -> Board:
        """The same board through a client of its own."""
        return Board(_client(self._client))

    def write(self, name: str, entry: Entry) -> None:
        """Put an entry, in the place of an earlier one."""
        self._store.set(name, json.dumps(entry))

    def write_first(self, name: str, entry: Entry) -> Entry:
        """Put an entry unless there is one; returns the one that is there now."""
        return json.loads(self._store.compare_set(name, "", json.dumps(entry)))

    def read(self, name: str) -> Entry | None:
        """The entry, None if there is none."""
        return json.loads(self._store.get(name)) if self._store.check([name]) else None

    def read_all(self, names: Iterable[str]) -> dict[str, Entry]:
        """Those of the entries that are there; entries are taken to stay once they are."""
        names = list(names)
        self._there |= {name for name in names if name not in self._there and self._store.check([name])}
        there = [name for name in names if name in self._there]
        return dict(zip(there, map(json.loads, self._store.multi_get(there)), strict=True)) if there else {}


def open_board() -> Board:
    """The board of this run; a process that is alone has one for itself."""
    if not dist.is_initialized():
        return Board(dist.HashStore())
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return Board(_client(store))


def _client(store: dist.Store) -> dist.Store:
    if isinstance(store, dist.HashStore):  # lives in this process and never waits
        return store
    client = store.clone()  # type: ignore[attr-defined]
    client.set_timeout(_TIMEOUT)
    return client
