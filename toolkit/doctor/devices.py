"""Accelerators and processors: alike on every node, usable, idle, fast, and how they are linked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from toolkit.doctor.facts import Facts
from toolkit.doctor.findings import Finding, compare, first_of_each_node, size, who
from toolkit.doctor.nvidia import Gpu

_BF16_CAPABILITY = 8.0  # Ampere
_BUSY_MEMORY = 1024**3  # an idle device holds some hundred MiB at most
_SLOW = 0.7
_BUSY_LOAD = 0.6  # of the usable threads


def check_devices(facts: Sequence[Facts], mixed_precision: str) -> list[Finding]:
    """All findings of this file that need no measurement. mixed_precision: 'no' or 'bf16', of the layout."""
    nodes = first_of_each_node(facts)
    findings = [check_usable(nodes), check_kind(facts)]
    if any(one.gpus for one in nodes):
        findings += [check_alike(nodes), check_enough(nodes), check_idle(nodes), check_bf16(nodes, mixed_precision)]
        findings += [check_links(nodes)]
    elif all(one.device_kind == "cpu" for one in facts):
        findings += [check_cpu_bf16(nodes, mixed_precision), check_processors(nodes), check_cpu_idle(nodes)]
    return findings


def check_kind(facts: Sequence[Facts]) -> Finding:
    """Ranks on different kinds of device cannot form one process group."""
    remedy = "start only nodes of one kind; look at the driver and CUDA_VISIBLE_DEVICES of those that differ"
    return compare("devices.kind", "every rank runs on", facts, lambda one: one.device_kind, "fault", remedy)


def check_usable(nodes: Sequence[Facts]) -> Finding:
    """Devices that nvidia-smi lists and torch cannot use: a CPU build of torch, or a driver that is too old."""
    lost = [one for one in nodes if one.gpus and one.torch_devices == 0]
    if lost:
        first = lost[0]
        return Finding(
            "devices.usable",
            "fault",
            f"nvidia-smi lists {len(first.gpus)} GPUs, torch {first.versions.get('torch')} can use none ({who(lost)})",
            "install the CUDA build of torch for this driver, see https://pytorch.org/get-started/locally",
        )
    counts = sorted({one.torch_devices for one in nodes})
    found = " or ".join(map(str, counts)) if counts != [0] else "no"
    return Finding("devices.usable", "ok", f"{found} accelerator{'' if counts == [1] else 's'} a node")


def check_alike(nodes: Sequence[Facts]) -> Finding:
    """The same models with the same memory everywhere: a step is as slow as its slowest device."""

    def describe(one: Facts) -> str:
        kinds = Counter(f"{gpu.name} ({size(gpu.memory)})" for gpu in one.gpus)
        return " + ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "no GPU"

    finding = compare(
        "devices.alike",
        "each node has",
        nodes,
        describe,
        "warning",
        "use nodes of one kind: every step waits for the slowest device, and the smallest memory decides",
    )
    mixed = [one for one in nodes if len({(gpu.name, gpu.memory) for gpu in one.gpus}) > 1]
    if finding.level == "ok" and mixed:
        return Finding("devices.alike", "warning", finding.what, "choose equal devices with CUDA_VISIBLE_DEVICES")
    return finding


def check_enough(nodes: Sequence[Facts]) -> Finding:
    """One device for each process of a node."""
    short = [one for one in nodes if one.torch_devices and one.local_size > one.torch_devices]
    if short:
        return Finding(
            "devices.enough",
            "fault",
            f"{short[0].local_size} processes for {short[0].torch_devices} accelerators ({who(short)})",
            "set --num_processes to the number of accelerators",
        )
    idle = [one for one in nodes if one.local_size < one.torch_devices]
    if idle:
        return Finding(
            "devices.enough", "ok", f"{idle[0].local_size} of {idle[0].torch_devices} accelerators of a node are used"
        )
    return Finding("devices.enough", "ok", "one accelerator for each process")


def check_idle(nodes: Sequence[Facts]) -> Finding:
    """Nobody else computes on the devices."""
    busy = []
    for one in nodes:
        for gpu in one.gpus:
            if gpu.processes > 0 or gpu.memory_used > _BUSY_MEMORY:
                used = f"{size(gpu.memory_used)} used" + (f" by {gpu.processes} processes" if gpu.processes > 0 else "")
                busy.append(f"GPU {gpu.index} on {one.host}: {used}")
    if busy:
        more = f", and {len(busy) - 4} more" if len(busy) > 4 else ""
        return Finding(
            "devices.idle",
            "warning",
            "; ".join(busy[:4]) + more,
            "end what runs there (nvidia-smi names it), or choose other devices with CUDA_VISIBLE_DEVICES",
        )
    return Finding("devices.idle", "ok", "no other process uses the GPUs")


def check_bf16(nodes: Sequence[Facts], mixed_precision: str) -> Finding:
    """bf16 units come with compute capability 8.0."""
    old = [one for one in nodes if any(_capability(gpu) < _BF16_CAPABILITY for gpu in one.gpus)]
    shown = ", ".join(sorted({gpu.capability for one in nodes for gpu in one.gpus}))
    if not old:
        return Finding("devices.bf16", "ok", f"bf16 units (compute capability {shown})")
    what = f"no bf16 units below compute capability 8.0, found {shown} ({who(old)})"
    if mixed_precision != "bf16":
        return Finding("devices.bf16", "ok", what + "; the layout does not ask for them")
    return Finding("devices.bf16", "warning", what, "use a layout with mixed_precision: no on these devices")


def check_links(nodes: Sequence[Facts]) -> Finding:
    """How the devices of a node reach each other. A mixture is worth a choice of devices, no NVLink is not."""
    links = {pair: link for one in nodes for pair, link in one.links.items()}
    if not links:
        return Finding("devices.links", "ok", "one GPU a node, or links not known (nvidia-smi topo -m tells them)")
    finding = compare(
        "devices.links",
        "links between the GPUs of a node:",
        nodes,
        lambda one: ", ".join(f"{n} pairs {kind}" for kind, n in sorted(Counter(one.links.values()).items())) or "none",
        "warning",
        "nodes with other links make steps as slow as the slowest; use nodes of one kind",
    )
    nvlink = [pair for pair, link in links.items() if link.startswith("NV")]
    if finding.level == "ok" and nvlink and len(nvlink) < len(links):
        return Finding(
            "devices.links",
            "warning",
            f"only some GPUs share NVLink: {', '.join(nvlink)}; the others meet over PCIe",
            "where fewer devices are enough, choose a set that shares NVLink with CUDA_VISIBLE_DEVICES",
        )
    return finding


def check_cpu_bf16(nodes: Sequence[Facts], mixed_precision: str) -> Finding:
    """bf16 matrix products of the processor itself."""
    without = [one for one in nodes if not one.machine.cpu_bf16]
    if not without:
        return Finding("devices.bf16", "ok", "the processors have bf16 instructions")
    what = f"no bf16 instructions ({who(without)})"
    if mixed_precision != "bf16":
        return Finding("devices.bf16", "ok", f"{what}; the layout does not ask for them")
    return Finding(
        "devices.bf16", "warning", f"{what}: bf16 is many times slower than fp32 there", "use --mixed_precision no"
    )


def check_cpu_idle(nodes: Sequence[Facts]) -> Finding:
    """Nobody else computes on the processors. The load of five minutes: the doctor's own start hardly shows in it."""
    busy = [one for one in nodes if (one.machine.load or 0) > _BUSY_LOAD * one.machine.usable_cores]
    shown = (busy or nodes)[0].machine
    what = f"load {shown.load} over five minutes on {shown.usable_cores} usable threads"
    if busy:
        remedy = "look at top: what is measured here is what others leave; run the doctor again when they have ended"
        return Finding("devices.idle", "warning", f"{what} ({who(busy)})", remedy)
    return Finding("devices.idle", "ok", what)


def check_processors(nodes: Sequence[Facts]) -> Finding:
    """As many cores on every node."""
    return compare(
        "devices.processors",
        "each node has",
        nodes,
        lambda one: f"{one.machine.cores} cores, {one.machine.usable_cores} usable threads of {one.machine.cpu}",
        "warning",
        "every step waits for the slowest node: use equal ones, or ask the batch system for as many cores on each",
    )


def check_threads(threads: dict[int, int], nodes: Sequence[Facts]) -> Finding:
    """CPU layouts: threads of all processes of a node fit its cores. threads: by rank, those torch computes with."""
    crowded = [one for one in nodes if threads[one.rank] * one.local_size > one.machine.usable_cores]
    mine = threads[nodes[0].rank]
    processes = nodes[0].local_size
    what = f"{processes} process{'es' if processes > 1 else ''} a node, {mine} thread{'s' if mine > 1 else ''} each"
    if crowded:
        worst = crowded[0]
        return Finding(
            "devices.threads",
            "warning",
            f"{worst.local_size} processes x {threads[worst.rank]} threads on {worst.machine.usable_cores} usable "
            f"cores ({who(crowded)})",
            "set OMP_NUM_THREADS to cores / processes, or unset it: the toolkit then does that",
        )
    return Finding("devices.threads", "ok", what)


def check_speed(flops: dict[int, float], facts: Sequence[Facts], precision: str) -> Finding:
    """No rank's matrix products are much slower than the median rank's. flops: by rank, per second, at the same time."""
    ordered = sorted(flops.values())
    median = ordered[len(ordered) // 2]
    slow = [one for one in facts if flops[one.rank] < _SLOW * median]
    span = " to ".join(dict.fromkeys(f"{one / 1e12:.3g}" for one in (ordered[0], ordered[-1])))
    what = f"{precision} matrix products at {span} TFLOP/s a rank" + (", all at once" if len(facts) > 1 else "")
    if slow:
        return Finding(
            "devices.speed",
            "warning",
            f"{what}; slowest: {who(slow)}",
            "look for other work, heat and power limits there (nvidia-smi -q -d PERFORMANCE, top)",
        )
    return Finding("devices.speed", "ok", what)


def _capability(gpu: Gpu) -> float:
    try:
        return float(gpu.capability)
    except ValueError:
        return 0.0
