"""All that the main process has learned, judged: findings, measured collectives and what a step would cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from toolkit import __version__
from toolkit.doctor.collectives import Line, Measured, Timing, bus_factor
from toolkit.doctor.cost import ALL, Cost, Model, Work, assumptions, compute_seconds, step_costs
from toolkit.doctor.devices import check_devices, check_speed, check_threads
from toolkit.doctor.facts import Facts
from toolkit.doctor.findings import Finding, first_of_each_node
from toolkit.doctor.host import check_clock, check_host
from toolkit.doctor.network import check_network, check_reachable
from toolkit.doctor.options import Options
from toolkit.doctor.storage import check_storage
from toolkit.doctor.versions import check_versions

FORMAT = 1


@dataclass
class Record:
    """What is known so far; stages add to it, and a report can be made at any moment.

    seen: for each folder, by rank, whether it saw the main process's file. reached: by node, for each other node, why not.
    offsets: by node, seconds ahead of the main process, and uncertain. flops and threads: by rank. extra: findings of stages.
    """

    processes: int
    layout: str = "none, one process"
    mixed_precision: str = "no"
    facts: list[Facts] = field(default_factory=list)
    seen: dict[str, dict[int, bool]] = field(default_factory=dict)
    reached: dict[int, dict[int, str]] = field(default_factory=dict)
    offsets: dict[int, tuple[float, float]] = field(default_factory=dict)
    flops: dict[int, float] = field(default_factory=dict)
    threads: dict[int, int] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)
    extra: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """The product of the doctor. nodes: host and ranks of each node. assumptions: what costs rest on, or why there are none."""

    processes: int
    layout: str
    nodes: list[dict[str, Any]]
    findings: list[Finding]
    measured: list[Measured]
    costs: list[Cost]
    assumptions: list[str]
    facts: list[dict[str, Any]]

    @property
    def faults(self) -> list[Finding]:
        """Findings that would break a run."""
        return [one for one in self.findings if one.level == "fault"]

    @property
    def exit_code(self) -> int:
        """1 with faults, 0 without."""
        return 1 if self.faults else 0


def judge(record: Record, options: Options, model: Model | None) -> Report:
    """Run all checks on what the record holds; those that need what it lacks are left out."""
    facts = sorted(record.facts, key=lambda one: one.rank)
    nodes = first_of_each_node(facts)
    findings = check_versions(facts) + check_devices(facts, record.mixed_precision)
    if len(record.flops) == len(facts):
        if all(one.device_kind == "cpu" for one in facts):
            findings.append(check_threads(record.threads, nodes))
        findings.append(check_speed(record.flops, facts, "bf16" if record.mixed_precision == "bf16" else "fp32"))
    findings += check_host(facts)
    complete = len(facts) == record.processes
    if complete and (len(nodes) == 1 or record.offsets):
        findings.append(check_clock(record.offsets, nodes))
    findings += check_storage(facts, record.seen, model.parameters if model else None)
    findings += check_network(facts)
    if complete and (len(nodes) == 1 or record.reached):
        findings.append(check_reachable(nodes, record.reached))
    findings += record.extra
    costs, said = _costs(record, options, model)
    return Report(
        processes=record.processes,
        layout=record.layout,
        nodes=[
            {"node": one.node, "host": one.host, "ranks": [f.rank for f in facts if f.node == one.node]}
            for one in nodes
        ],
        findings=findings,
        measured=record.measured,
        costs=costs,
        assumptions=said,
        facts=[one.to_json() for one in facts],
    )


def _costs(record: Record, options: Options, model: Model | None) -> tuple[list[Cost], list[str]]:
    lines = {(one.group, one.operation): one.line for one in record.measured}
    if model is None:
        return [], []
    if (ALL, "reduce_scatter") not in lines:
        return [], ["the cost of a step needs measured collectives: use --layout or a launcher, and --seconds above 0"]
    sizes = Counter(one.node for one in record.facts)
    nodes = len(sizes) if len(set(sizes.values())) == 1 else 1  # HSDP needs as many ranks on each
    slowest = min(record.flops.values(), default=0.0)
    computing = options.compute_seconds
    if options.tokens and slowest:
        computing = compute_seconds(model.parameters, options.tokens, slowest)
    work = Work(options.micro_batches, 2 if record.mixed_precision == "bf16" else 4, computing)
    costs = step_costs(model, work, record.processes, nodes, lines)
    return costs, assumptions(model, work, options.tokens, slowest or None)


def to_json(report: Report) -> dict[str, Any]:
    """Plain dicts and lists; all sizes in bytes, all times in seconds, all bandwidths in bytes per second."""
    return {
        "format": FORMAT,
        "toolkit": __version__,
        "faults": len(report.faults),
        "warnings": sum(one.level == "warning" for one in report.findings),
        "processes": report.processes,
        "layout": report.layout,
        "nodes": report.nodes,
        "findings": [asdict(one) for one in report.findings],
        "collectives": [_measured_to_json(one) for one in report.measured],
        "step": [{**asdict(one), "share": one.share, "share_overlapped": one.hidden_share} for one in report.costs],
        "assumptions": report.assumptions,
        "facts": report.facts,
    }


def from_json(found: dict[str, Any]) -> Report:
    """The opposite of `to_json`."""
    costs = [Cost(**{k: v for k, v in one.items() if not k.startswith("share")}) for one in found["step"]]
    return Report(
        processes=found["processes"],
        layout=found["layout"],
        nodes=found["nodes"],
        findings=[Finding(**one) for one in found["findings"]],
        measured=measured_from_json(found["collectives"]),
        costs=costs,
        assumptions=found["assumptions"],
        facts=found["facts"],
    )


def _measured_to_json(one: Measured) -> dict[str, Any]:
    factor = bus_factor(one.operation, len(one.ranks))
    return {
        "group": one.group,
        "operation": one.operation,
        "ranks": one.ranks,
        "sizes": [
            {
                "bytes": t.bytes,
                "seconds": t.seconds,
                "algorithm_bandwidth": t.bytes / t.seconds,
                "bus_bandwidth": t.bytes / t.seconds * factor,
            }
            for t in one.timings
        ],
        "latency": one.line.latency,
        "bandwidth": one.line.bandwidth,
        "cut": one.cut,
    }


def measured_from_json(found: Sequence[dict[str, Any]]) -> list[Measured]:
    """The opposite of what `to_json` writes under "collectives"."""
    return [
        Measured(
            one["group"],
            one["operation"],
            one["ranks"],
            [Timing(t["bytes"], t["seconds"]) for t in one["sizes"]],
            Line(one["latency"], one["bandwidth"]),
            one["cut"],
        )
        for one in found
    ]


def measured_to_json(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """For the other ranks' results, which reach the main process as JSON."""
    return [_measured_to_json(one) for one in measured]
