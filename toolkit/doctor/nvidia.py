"""What nvidia-smi tells: devices, the processes on them and how they are linked. Nothing where it is not installed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

_SECONDS = 20.0
_FIELDS = "index,uuid,name,driver_version,memory.total,memory.used,compute_cap"
_MIB = 1024**2


@dataclass(frozen=True)
class Gpu:
    """One device of this machine. Memory in bytes; capability as "9.0"; processes: how many use it, -1 if not known."""

    index: int
    uuid: str
    name: str
    driver: str
    memory: int
    memory_used: int
    capability: str
    processes: int


def command_output(command: Sequence[str], seconds: float = _SECONDS) -> str:
    """Standard output of a command; empty when it is missing, fails, or takes longer than `seconds`."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def visible_gpus(devices: str | None) -> list[Gpu]:
    """The devices that a process may use. devices: CUDA_VISIBLE_DEVICES, None where it is not set."""
    gpus = parse_gpus(
        command_output(["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"]),
        command_output(["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader,nounits"]),
    )
    return choose(gpus, devices)


def topology() -> dict[str, str]:
    """The links between devices of this machine, as `parse_topology` gives them."""
    return parse_topology(command_output(["nvidia-smi", "topo", "-m"]))


def parse_gpus(devices: str, processes: str) -> list[Gpu]:
    """Devices from the CSV of --query-gpu and of --query-compute-apps; lines of another form are skipped."""
    users = [line.split(",")[0].strip() for line in processes.splitlines() if line.strip()]
    found = []
    for line in devices.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 7 or not parts[0].isdigit():
            continue
        index, uuid, name, driver, total, used, capability = parts
        memory, memory_used = (int(n) * _MIB if n.isdigit() else 0 for n in (total, used))
        found.append(Gpu(int(index), uuid, name, driver, memory, memory_used, capability, users.count(uuid)))
    return found


def choose(gpus: list[Gpu], devices: str | None) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES names, by number or by the beginning of their uuid, in its order."""
    if devices is None:
        return gpus
    chosen = []
    for word in (part.strip() for part in devices.split(",")):
        match = [g for g in gpus if word and (word == str(g.index) or g.uuid.startswith(word))]
        if not match:
            break  # as CUDA does: what follows an unknown device is not visible either
        chosen.append(match[0])
    return chosen


def parse_topology(text: str) -> dict[str, str]:
    """Links from `nvidia-smi topo -m`, {"0-1": "NV18", "0-2": "SYS"}; NV# is NVLink, all others are PCIe or worse."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    head = next((line.split() for line in lines if re.match(r"\s*GPU0\s", line)), [])
    columns = [int(word[3:]) for word in head if re.fullmatch(r"GPU\d+", word)]
    links = {}
    for line in lines:
        words = line.split()
        if len(words) <= len(columns) or not re.fullmatch(r"GPU\d+", words[0]) or words[1].startswith("GPU"):
            continue
        row = int(words[0][3:])
        for column, link in zip(columns, words[1:], strict=False):
            if row < column:
                links[f"{row}-{column}"] = link
    return links
