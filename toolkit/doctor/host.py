"""Limits of the operating system and free memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from toolkit.doctor.facts import Facts
from toolkit.doctor.findings import Finding, Level, first_of_each_node, size, who

_SHM_FAULT, _SHM_LEAST = 64 * 1024**2, 1024**3  # 64 MiB is what a container has by default
_FILES_FAULT, _FILES_LEAST = 512, 4096
_MEMORY_SHARE = 0.2
_MEMORY_PER_PROCESS = 2 * 1024**3
_SKEW_WARNING, _SKEW_FAULT = 1.0, 60.0  # seconds
UNLIMITED = -1


def check_host(facts: Sequence[Facts]) -> list[Finding]:
    """All findings of this file that need no measurement."""
    nodes = first_of_each_node(facts)
    return [check_shm(nodes), check_open_files(nodes), check_locked_memory(nodes), check_memory(nodes)]


def check_shm(nodes: Sequence[Facts]) -> Finding:
    """/dev/shm: NCCL keeps a buffer for each pair of local devices there, and data loaders their batches."""

    def level(one: Facts) -> Level:
        free = one.machine.shm_free
        if free is None or free >= _SHM_LEAST:
            return "ok"
        return "fault" if free <= _SHM_FAULT and one.local_size > 1 and one.device_kind != "cpu" else "warning"

    remedy = "give it 1 GiB or more: docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm"
    return _worst("host.shm", nodes, level, "/dev/shm with {} free", lambda one: _amount(one.machine.shm_free), remedy)


def check_open_files(nodes: Sequence[Facts]) -> Finding:
    """Sockets to all ranks, shards of checkpoints and data sets are open files."""

    def level(one: Facts) -> Level:
        limit = one.machine.open_files
        if limit is None or limit == UNLIMITED or limit >= _FILES_LEAST:
            return "ok"
        return "fault" if limit < _FILES_FAULT else "warning"

    remedy = "ulimit -n 65536 before the launch, or in the job script"
    return _worst(
        "host.open_files", nodes, level, "{} open files a process", lambda one: _count(one.machine.open_files), remedy
    )


def check_locked_memory(nodes: Sequence[Facts]) -> Finding:
    """InfiniBand needs memory that stays in place; elsewhere the limit does not matter."""

    def level(one: Facts) -> Level:
        limited = one.machine.locked_memory not in (None, UNLIMITED)
        return "warning" if limited and one.network.infiniband else "ok"

    remedy = "ulimit -l unlimited (docker run --ulimit memlock=-1): InfiniBand registers its buffers as locked memory"
    return _worst(
        "host.locked_memory", nodes, level, "locked memory {}", lambda one: _amount(one.machine.locked_memory), remedy
    )


def check_memory(nodes: Sequence[Facts]) -> Finding:
    """Main memory that is free now."""

    def level(one: Facts) -> Level:
        machine = one.machine
        scarce = machine.memory_free < _MEMORY_SHARE * machine.memory
        return "warning" if scarce or machine.memory_free < _MEMORY_PER_PROCESS * one.local_size else "ok"

    remedy = "end what else uses it (top, free -h), or ask the batch system for more: weights are read into main memory"
    return _worst(
        "host.memory",
        nodes,
        level,
        "{} of main memory free",
        lambda one: f"{size(one.machine.memory_free)} of {size(one.machine.memory)}",
        remedy,
    )


def check_clock(offsets: dict[int, tuple[float, float]], nodes: Sequence[Facts]) -> Finding:
    """Clocks of the nodes. offsets: by node, seconds ahead of the main process and seconds it is uncertain by."""
    others = [one for one in nodes if one.node in offsets]
    if not others:
        return Finding("host.clock", "ok", "one node, one clock")
    worst = max(others, key=lambda one: abs(offsets[one.node][0]))
    skew, uncertain = offsets[worst.node]
    what = f"clocks differ by {abs(skew):.2g} s at most, known to {uncertain:.1g} s ({who([worst])})"
    beyond = abs(skew) - uncertain
    if beyond <= _SKEW_WARNING:
        return Finding("host.clock", "ok", what)
    level: Level = "fault" if beyond > _SKEW_FAULT else "warning"
    return Finding(
        "host.clock", level, what, "start chrony or ntpd there: file times, logs and certificates depend on the clock"
    )


def _worst(
    name: str,
    nodes: Sequence[Facts],
    level: Callable[[Facts], Level],
    text: str,
    value: Callable[[Facts], str],
    remedy: str,
) -> Finding:
    """The finding of the worst nodes, which it names; without any, what the first node has."""
    for bad in ("fault", "warning"):
        found = [one for one in nodes if level(one) == bad]
        if found:
            return Finding(name, bad, f"{text.format(value(found[0]))} ({who(found)})", remedy)
    return Finding(name, "ok", text.format(value(nodes[0])))


def _amount(number: int | None) -> str:
    return "no limit known" if number is None else "unlimited" if number == UNLIMITED else size(number)


def _count(number: int | None) -> str:
    return "no limit known" if number is None else "unlimited" if number == UNLIMITED else f"{number:,}"
