"""Facts of this machine that a launch needs: its accelerators, and the network interface towards another one."""

from __future__ import annotations

import socket

import psutil


def count_accelerators() -> int:
    """Accelerators that a process here sees."""
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def interface_to(host: str, port: int) -> str | None:
    """Name of the interface whose address this machine uses towards `host`, None where it cannot be told."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # of a datagram socket: chooses a route, sends nothing
            mine = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address.split("%")[0] == mine for a in addresses):
            return name
    return None
