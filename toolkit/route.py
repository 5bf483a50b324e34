"""Which address and interface of this machine lead to another one."""

from __future__ import annotations

import socket

import psutil

_ANY_PORT = 9


def address_towards(host: str, port: int = _ANY_PORT) -> str:
    """This machine's address on the way to `host`, empty where there is no way or the name is not known.

    Connecting a datagram socket chooses a route and sends nothing. Looking a name up knows no time limit.
    """
    try:
        family, kind, protocol, _, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as way:
            way.connect(there)
            return str(way.getsockname()[0])
    except (OSError, UnicodeError):
        return ""


def interface_towards(host: str) -> str | None:
    """Name of the interface that has `address_towards`, None where it cannot be told."""
    mine = address_towards(host)
    for name, addresses in psutil.net_if_addrs().items():
        if mine and any(a.address.split("%")[0] == mine for a in addresses):
            return name
    return None
