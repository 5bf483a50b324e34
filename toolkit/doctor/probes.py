"""Small experiments of one rank: which address peers are told, whether a folder takes a file, whether the hub answers."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from toolkit.data.cache import cache_folder
from toolkit.errors import UserError
from toolkit.route import address_towards

T = TypeVar("T")

_NAME_SECONDS = 5.0
_HUB_SECONDS = 6.0
_ANYWHERE = "192.0.2.1"  # TEST-NET-1 (RFC 5737): a route to it is the default route; nothing is sent


@dataclass(frozen=True)
class Interfaces:
    """How a rank would talk to others.

    addresses: IPv4 address of each network interface. hostname_address: what the host's own name resolves to, empty if to
    nothing. route_interface, route_address: that packets to the main process leave by. gloo, nccl: GLOO_SOCKET_IFNAME and
    NCCL_SOCKET_IFNAME, empty where not set. infiniband: state of each device, as "ACTIVE".
    """

    addresses: dict[str, str]
    hostname_address: str
    route_interface: str
    route_address: str
    gloo: str
    nccl: str
    infiniband: dict[str, str]


@dataclass(frozen=True)
class Folder:
    """path: as a run would use it. looked_in: itself, or its nearest parent that exists. fault: why no file can be written
    there, empty if it can. free: bytes."""

    path: str
    looked_in: str
    fault: str
    free: int


@dataclass(frozen=True)
class Hub:
    """offline: the setting that forbids network calls, empty if none does. fault: why the endpoint did not answer."""

    endpoint: str
    offline: str
    fault: str


def look_at_network(main_address: str | None) -> Interfaces:
    """The interfaces of this host. main_address: of the main process, None where there is one process only."""
    addresses = {
        name: next((a.address for a in found if a.family == socket.AF_INET), "")
        for name, found in psutil.net_if_addrs().items()
    }
    addresses = {name: address for name, address in addresses.items() if address}
    own = within(_NAME_SECONDS, lambda: socket.gethostbyname(socket.gethostname()), "")
    route = _address_towards(main_address) if main_address else ""
    if not route or route.startswith("127."):
        route = _address_towards(_ANYWHERE)
    return Interfaces(
        addresses=addresses,
        hostname_address=own,
        route_interface=next((name for name, address in addresses.items() if address == route), ""),
        route_address=route,
        gloo=os.environ.get("GLOO_SOCKET_IFNAME", ""),
        nccl=os.environ.get("NCCL_SOCKET_IFNAME", ""),
        infiniband=_infiniband(Path("/sys/class/infiniband")),
    )


def look_at_folders(output: str) -> dict[str, Folder]:
    """The cache of tokenized data and the output folder, tried with a file each. Creates the cache folder, no other."""
    try:
        cache = str(cache_folder(None))
        found = {"cache": _folder(cache)}
    except UserError as error:
        found = {"cache": Folder(os.environ.get("TOOLKIT_CACHE", "~/.cache/toolkit"), "", str(error), 0)}
    found["output"] = _folder(output)
    return found


def look_at_hub() -> Hub:
    """Ask the hub's endpoint for its front page, unless a setting says offline. Never longer than six seconds."""
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE"):
            return Hub(endpoint, name, "")

    def ask() -> str:
        """Why there was no answer; empty for any answer."""
        if not endpoint.startswith(("http://", "https://")):
            return "it is not a web address"
        request = urllib.request.Request(endpoint, method="HEAD", headers={"User-Agent": "toolkit-doctor"})
        try:
            with urllib.request.urlopen(request, timeout=_HUB_SECONDS):
                return ""
        except urllib.error.HTTPError:
            return ""  # it answered
        except (OSError, ValueError) as error:
            return str(getattr(error, "reason", error))

    return Hub(endpoint, "", within(_HUB_SECONDS, ask, f"no answer within {_HUB_SECONDS:.0f} s"))


def within(seconds: float, function: Callable[[], T], otherwise: T) -> T:
    """What `function` returns, or `otherwise` when it fails or takes longer; name lookups know no time limit."""
    found: list[T] = []

    def call() -> None:
        try:
            found.append(function())
        except (OSError, UnicodeError):
            found.append(otherwise)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else otherwise


def _address_towards(address: str) -> str:
    return within(_NAME_SECONDS, lambda: address_towards(address), "")


def _infiniband(folder: Path) -> dict[str, str]:
    states = {}
    for device in sorted(folder.glob("*")):
        try:
            state = (device / "ports" / "1" / "state").read_text(encoding="ascii")
            states[device.name] = state.partition(":")[2].strip() or "unknown"  # "4: ACTIVE"
        except OSError:
            states[device.name] = "unknown"
    return states


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # inside a folder that may not be entered
        return False


def _folder(name: str) -> Folder:
    path = Path(name).expanduser().absolute()
    present = next((p for p in (path, *path.parents) if _exists(p)), Path("/"))
    if not present.is_dir():
        return Folder(str(path), str(present), f"{present} is a file", 0)
    try:
        with tempfile.NamedTemporaryFile(dir=present, prefix=".doctor-"):
            pass
        fault = ""
    except OSError as error:
        fault = error.strerror or str(error)
    return Folder(str(path), str(present), fault, psutil.disk_usage(str(present)).free)
