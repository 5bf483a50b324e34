"""Made-up facts: a healthy cluster, of which a test changes one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toolkit.doctor.facts import Facts, Host
from toolkit.doctor.nvidia import Gpu
from toolkit.doctor.probes import Folder, Hub, Interfaces

GIB = 1024**3
VERSIONS = {
    "python": "3.11.7", "torch": "2.13.0", "accelerate": "1.15.0", "transformers": "5.24.0", "toolkit": "0.1.0 (aa)",
    "CUDA": "12.8", "NCCL": "2.27.3", "driver": "570.1",
}  # fmt: skip
HOST = Host(
    machine="boot-a", cores=8, usable_cores=16, load=0.5, cpu="x86_64", cpu_bf16=True, memory=64 * GIB, memory_free=60 * GIB,
    shm=32 * GIB, shm_free=32 * GIB, open_files=65536, locked_memory=-1,
)  # fmt: skip
NETWORK = Interfaces(
    addresses={"lo": "127.0.0.1", "eth0": "10.0.0.1"}, hostname_address="10.0.0.1", route_interface="eth0",
    route_address="10.0.0.1", gloo="", nccl="", infiniband={},
)  # fmt: skip
H100 = Gpu(0, "GPU-0", "H100", "570.1", 80 * GIB, 0, "9.0", 0)


def rank(number: int, *, per_node: int = 1, gpus: int = 0, **changes: Any) -> Facts:
    """A healthy rank, with `per_node` ranks a node."""
    node = number // per_node
    folder = {what: Folder(f"/shared/{what}", f"/shared/{what}", "", 500 * GIB) for what in ("cache", "output")}
    return replace(
        Facts(
            rank=number,
            local_rank=number % per_node,
            local_size=per_node,
            node=node,
            host=f"host-{'abcdefgh'[node]}",
            versions=VERSIONS,
            torch_devices=gpus,
            device_kind="cuda" if gpus else "cpu",
            gpus=[replace(H100, index=i, uuid=f"GPU-{i}") for i in range(gpus)],
            links={f"{i}-{j}": "NV18" for i in range(gpus) for j in range(i + 1, gpus)},
            machine=replace(HOST, machine=f"boot-{node}"),
            network=NETWORK,
            folders=folder,
            hub=Hub("https://huggingface.co", "", ""),
        ),
        **changes,
    )


def ranks(count: int, **made: Any) -> list[Facts]:
    """Several healthy ranks."""
    return [rank(number, **made) for number in range(count)]


def change(one: Facts, part: str, **changes: Any) -> Facts:
    """`one` with something changed in a part such as machine or network."""
    return replace(one, **{part: replace(getattr(one, part), **changes)})
