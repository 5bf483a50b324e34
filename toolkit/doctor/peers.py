"""Nodes connect to each other on free ports, and compare clocks over these connections.

Directly and not over a process group: a group may be what fails, and a device's queue would blur the clock.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

_CONNECT_SECONDS = 5.0
_ROUNDS = 20
_CLOCK = struct.Struct("!d")
_PEERS_AT_ONCE = 16


@dataclass(frozen=True)
class Tried:
    """One connection. fault: why it failed, empty if it did not. ahead: seconds that the peer's clock is ahead of ours,
    uncertain: by how much that may be wrong, half of the best round trip."""

    fault: str
    ahead: float = 0.0
    uncertain: float = 0.0


class ClockServer:
    """Answers every byte with this host's time, in seconds since 1970, until it is closed."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection:
        connection.settimeout(_CONNECT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while connection.recv(1):
                connection.sendall(_CLOCK.pack(time.time()))
        except OSError:
            pass


def try_peer(address: str, port: int) -> Tried:
    """Connect and compare clocks: of several round trips the fastest, in whose middle the peer is assumed to have looked
    (D. Mills, Network Time Protocol, RFC 5905, section 8)."""
    trips = []
    try:
        with socket.create_connection((address, port), timeout=_CONNECT_SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(_ROUNDS):
                sent, started = time.time(), time.perf_counter()
                connection.sendall(b"?")
                theirs = _CLOCK.unpack(_exactly(connection, _CLOCK.size))[0]
                trip = time.perf_counter() - started
                trips.append((trip, theirs - (sent + trip / 2)))
    except (OSError, struct.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Tried(f"{address}:{port} {reason}")
    best, ahead = min(trips)
    return Tried("", ahead, best / 2)


def try_peers(addresses: Mapping[int, tuple[str, int]]) -> dict[int, Tried]:
    """`try_peer` for every node in `addresses`, some at once."""
    with ThreadPoolExecutor(_PEERS_AT_ONCE) as pool:
        return dict(zip(addresses, pool.map(lambda to: try_peer(*to), addresses.values()), strict=True))


def _exactly(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        more = connection.recv(length - len(received))
        if not more:
            raise ConnectionResetError("closed by the peer")
        received += more
    return received
