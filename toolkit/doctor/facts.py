"""What one rank knows of its host, without a process group and without touching a device."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import xxhash

from toolkit import __version__
from toolkit.doctor.nvidia import Gpu, topology, visible_gpus
from toolkit.doctor.probes import Folder, Hub, Interfaces

_UNLIMITED = -1


@dataclass(frozen=True)
class Place:
    """This process among the others, as the launcher's environment says."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    node: int

    @staticmethod
    def here() -> Place:
        """From RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and GROUP_RANK; one process without them."""

        def number(name: str, default: int) -> int:
            return int(os.environ.get(name, default))

        rank, size = number("RANK", 0), number("WORLD_SIZE", 1)
        local_size = number("LOCAL_WORLD_SIZE", 1)
        return Place(rank, size, number("LOCAL_RANK", 0), local_size, number("GROUP_RANK", rank // local_size))


@dataclass(frozen=True)
class Host:
    """Limits and room of a host. Bytes, -1 for unlimited; None where the system has no such thing.

    cores: physical; usable_cores: logical ones that this process may run on. machine: equal for processes that can reach
    each other by the loopback device, that is on the same machine and in the same container. load: processes that wanted
    a core on average over the last five minutes, None where the system does not count them.
    """

    machine: str
    cores: int
    load: float | None
    usable_cores: int
    cpu: str
    cpu_bf16: bool
    memory: int
    memory_free: int
    shm: int | None
    shm_free: int | None
    open_files: int | None
    locked_memory: int | None


@dataclass(frozen=True)
class Facts:
    """All that a rank tells the others. `torch_devices`: accelerators that torch can use, `gpus`: that nvidia-smi lists."""

    rank: int
    local_rank: int
    local_size: int
    node: int
    host: str
    versions: dict[str, str]
    torch_devices: int
    device_kind: str
    gpus: list[Gpu]
    links: dict[str, str]
    machine: Host
    network: Interfaces
    folders: dict[str, Folder]
    hub: Hub | None
    settings: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists."""
        return asdict(self)

    @staticmethod
    def from_json(found: dict[str, Any]) -> Facts:
        """The opposite of `to_json`."""
        parts = {
            "gpus": [Gpu(**gpu) for gpu in found["gpus"]],
            "machine": Host(**found["machine"]),
            "network": Interfaces(**found["network"]),
            "folders": {what: Folder(**folder) for what, folder in found["folders"].items()},
            "hub": Hub(**found["hub"]) if found["hub"] else None,
        }
        return Facts(**{**found, **parts})


def gather(place: Place, folders: dict[str, Folder], hub: Hub | None, network: Interfaces) -> Facts:
    """This rank's facts. Creates no context on a device, so that what nvidia-smi tells is not this program's doing."""
    import torch

    gpus = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return Facts(
        rank=place.rank,
        local_rank=place.local_rank,
        local_size=place.local_size,
        node=place.node,
        host=socket.gethostname(),
        versions=versions(gpus),
        torch_devices=torch.accelerator.device_count() if kind is not None else 0,
        device_kind=kind.type if kind is not None else "cpu",
        gpus=gpus,
        links=topology() if len(gpus) > 1 else {},
        machine=_host(),
        network=network,
        folders=folders,
        hub=hub,
        settings={k: v for k, v in sorted(os.environ.items()) if k.startswith(("NCCL_", "GLOO_", "OMP_", "CUDA_"))},
    )


def versions(gpus: list[Gpu]) -> dict[str, str]:
    """What must be the same everywhere. "toolkit" carries a digest of its sources: a checkout has no other version."""
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("accelerate", "transformers"):
        found[name] = metadata.version(name)
    found["toolkit"] = f"{__version__} ({source_digest(Path(__file__).parents[1])})"
    found["CUDA"] = str(torch.version.cuda or torch.version.hip or "none")
    nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version())) if nccl else "none"
    found["driver"] = gpus[0].driver if gpus else "none"
    return found


def source_digest(folder: Path) -> str:
    """Eight hex digits of the names and contents of the Python files in a folder."""
    digest = xxhash.xxh64()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


def _host() -> Host:
    from toolkit.layout import cpu_has_bf16

    memory, free = _memory()
    shm = psutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    return Host(
        machine=_machine(),
        cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        usable_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load=round(os.getloadavg()[1], 2) if hasattr(os, "getloadavg") else None,
        cpu=platform.machine(),
        cpu_bf16=cpu_has_bf16(),
        memory=memory,
        memory_free=free,
        shm=shm.total if shm else None,
        shm_free=shm.free if shm else None,
        open_files=_limit("RLIMIT_NOFILE"),
        locked_memory=_limit("RLIMIT_MEMLOCK"),
    )


def _machine() -> str:
    """Host names repeat among containers and change within one; the kernel's boot id and network namespace do not."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return socket.gethostname()


def _memory() -> tuple[int, int]:
    """Total and free main memory in bytes, within the limit of the container or job where there is one."""
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        if limit != "max" and int(limit) < total:
            total, free = int(limit), min(free, int(limit) - used)
    except (OSError, ValueError):
        pass
    return total, free


def _limit(name: str) -> int | None:
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(getattr(resource, name))
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft
