"""From a record to a report, to JSON and back, and to a table."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from tests.doctor.made import VERSIONS, ranks
from toolkit.doctor.collectives import OPERATIONS, Line, Measured, Timing
from toolkit.doctor.cost import assumed_model
from toolkit.doctor.findings import Finding
from toolkit.doctor.options import Options
from toolkit.doctor.report import Record, Report, from_json, judge, to_json
from toolkit.doctor.table import print_report, seconds

OPTIONS = Options(
    json=False, output_dir="o", wait=1, seconds=1, parameters=1e9, model=None, micro_batches=1, tokens=1000,
    compute_seconds=None,
)  # fmt: skip


def record(processes: int = 2, **made) -> Record:  # type: ignore[no-untyped-def]
    measured = [
        Measured(
            group,
            operation,
            [0, 1],
            [Timing(8192, 1e-4), Timing(2**20, 1e-3)],
            Line(1e-5, 1e9),
            operation == "all_gather",
        )
        for group in ("across nodes", "all")
        for operation in OPERATIONS
    ]
    return Record(
        processes,
        layout="DDP, 2 processes on cpu",
        facts=ranks(2, **made),
        seen={what: {0: True, 1: True} for what in ("cache", "output")},
        reached={0: {1: ""}, 1: {0: ""}},
        offsets={1: (0.0, 1e-4)},
        flops={0: 1e12, 1: 2e12},
        threads={0: 1, 1: 1},
        measured=measured,
    )


def text(report: Report) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=160, soft_wrap=True))
    return out.getvalue()


def test_json_holds_the_whole_report() -> None:
    report = judge(record(), OPTIONS, assumed_model(1e9))
    found = json.loads(json.dumps(to_json(report), allow_nan=False))
    assert from_json(found) == report
    first = found["collectives"][0]["sizes"][0]
    assert first["algorithm_bandwidth"] == 8192 / 1e-4
    assert first["bus_bandwidth"] == 8192 / 1e-4  # all-reduce on two ranks: factor 1


def test_the_slowest_rank_computes_the_step() -> None:
    # 6 x 1e9 parameters x 1,000 tokens at 1 TFLOP/s, not at the 2 of the other rank; nor at their mean.
    costs = judge(record(), OPTIONS, assumed_model(1e9)).costs
    assert [one.layout for one in costs] == ["DDP", "FSDP2"]
    assert {one.compute_seconds for one in costs} == {6.0}
    given = replace(OPTIONS, tokens=None, compute_seconds=2.5)
    assert judge(record(), given, assumed_model(1e9)).costs[0].compute_seconds == 2.5


def test_a_cost_that_cannot_be_told_is_not_left_out_silently() -> None:
    made = record()
    made.measured = []
    report = judge(made, OPTIONS, assumed_model(1e9))
    assert report.costs == []
    assert "note: the cost of a step needs measured collectives: use --layout" in text(report)
    assert judge(made, OPTIONS, None).assumptions == []


def test_nodes_of_unequal_size_have_no_hsdp() -> None:
    def layouts(nodes: list[int]) -> list[str]:
        made = record()
        made.processes = 4
        made.facts = [replace(one, node=node) for one, node in zip(ranks(4), nodes, strict=True)]
        made.flops = dict.fromkeys(range(4), 1e12)
        made.threads = dict.fromkeys(range(4), 1)
        made.measured += [replace(one, group="inside a node") for one in made.measured[:3]]
        return [one.layout.partition(",")[0] for one in judge(made, OPTIONS, assumed_model(1e9)).costs]

    assert layouts([0, 0, 1, 1]) == ["DDP", "FSDP2", "HSDP"]
    assert layouts([0, 0, 0, 1]) == ["DDP", "FSDP2"]


def test_a_fault_decides_the_exit_code_a_warning_does_not() -> None:
    made = record()
    made.flops[1] = 0.1e12
    warned = judge(made, OPTIONS, None)
    assert [one.name for one in warned.findings if one.level == "warning"] == ["devices.speed"]
    assert warned.exit_code == 0
    made.facts[1] = replace(made.facts[1], versions={**VERSIONS, "torch": "1.0"})
    assert judge(made, OPTIONS, None).exit_code == 1


def test_a_record_of_the_first_stage_is_judged_by_what_it_holds() -> None:
    early = Record(4, facts=ranks(1), extra=[Finding("group.complete", "fault", "ranks 1, 2, 3 did not come", "look")])
    report = judge(early, OPTIONS, assumed_model(1e9))
    assert [one.name for one in report.faults] == ["group.complete"]
    assert not {"network.reachable", "host.clock", "storage.output_shared"} & {one.name for one in report.findings}
    assert report.costs == []


def test_the_table_ends_with_faults_then_warnings_and_their_remedies() -> None:
    made = record()
    made.flops[1] = 0.1e12
    made.seen["output"][1] = False
    shown = text(judge(made, OPTIONS, assumed_model(1e9)))
    fault, warning = shown.index("fault storage.output_shared:"), shown.index("warning devices.speed:")
    assert shown.index("one optimizer step") < fault < shown.index("    give --output_dir a folder") < warning
    assert shown.rstrip().endswith("checks")
    assert "1 fault, 1 warning in" in shown
    assert "across nodes = all, 2 ranks" in shown
    assert shown.count("* 1 MiB") == 1
    assert "* no time was left for larger messages" in shown


def test_times_are_in_the_unit_people_read() -> None:
    assert [seconds(s) for s in (2.5e-6, 0.0031, 1.5, 4321.0)] == ["2.5 us", "3.1 ms", "1.5 s", "4,321 s"]
