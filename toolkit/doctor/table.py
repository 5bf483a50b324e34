"""The report for people: findings by area, collectives, the cost of a step, and last what is wrong and what to do."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from toolkit.doctor.collectives import Measured
from toolkit.doctor.findings import Finding, size
from toolkit.doctor.report import Report

_STYLES = {"ok": "green", "warning": "yellow", "fault": "bold red"}
_WORDS = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter"}


def print_report(report: Report, console: Console) -> None:
    """Everything, the summary last."""
    hosts = ", ".join(f"{one['host']} ({_range(one['ranks'])})" for one in report.nodes[:8])
    more = f" and {len(report.nodes) - 8} more" if len(report.nodes) > 8 else ""
    console.print(f"layout: {report.layout}\nhosts: {hosts}{more}\n", markup=False)
    console.print(_findings(report.findings))
    if report.measured:
        console.print(_collectives(report.measured))
        if any(one.cut for one in report.measured):
            console.print("  * no time was left for larger messages, --seconds gives more", markup=False)
        console.print(_lines(report.measured))
    if report.costs:
        console.print(_costs(report))
    for one in report.assumptions:
        console.print(f"  {'assumed' if report.costs else 'note'}: {one}", markup=False)
    _print_summary(report, console)


def _table(title: str, *columns: str, numbers: tuple[str, ...] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table


def _findings(findings: list[Finding]) -> Table:
    table = _table("checks", "area", "check", "", "found")
    area = ""
    for one in findings:
        shown = one.area if one.area != area else ""
        area = one.area
        check = one.name.partition(".")[2].replace("_", " ")
        style = _STYLES[one.level]
        table.add_row(shown, check, f"[{style}]{one.level}[/]", escape(one.what))
    return table


def _collectives(measured: list[Measured]) -> Table:
    columns = ("message", "time", "algbw", "busbw")
    table = _table("\ncollectives", "group", "operation", *columns, numbers=columns)
    for names, one in _distinct(measured):
        for index, t in enumerate(one.timings):
            cut = "* " if one.cut and index == len(one.timings) - 1 else ""
            table.add_row(
                f"{names}, {len(one.ranks)} ranks" if index == 0 else "",
                _WORDS[one.operation] if index == 0 else "",
                cut + size(t.bytes),
                seconds(t.seconds),
                f"{t.bytes / t.seconds / 1e9:.3g} GB/s",
                f"{one.bus_bandwidth(t) / 1e9:.3g} GB/s",
            )
    return table


def _lines(measured: list[Measured]) -> Table:
    table = _table(
        "\ntime = latency + message / bandwidth", "group", "operation", "latency", "bandwidth", numbers=("latency",)
    )
    for names, one in _distinct(measured):
        table.add_row(names, _WORDS[one.operation], seconds(one.line.latency), f"{one.line.bandwidth / 1e9:.3g} GB/s")
    return table


def _distinct(measured: list[Measured]) -> list[tuple[str, Measured]]:
    """Each measurement once, with all the names its ranks go by."""
    found: dict[tuple[str, tuple[int, ...]], tuple[list[str], Measured]] = {}
    for one in measured:
        found.setdefault((one.operation, tuple(one.ranks)), ([], one))[0].append(one.group)
    return [(" = ".join(names), one) for names, one in found.values()]


def _costs(report: Report) -> Table:
    columns = ("over a link", "communication", "computing", "part of the step", "if overlapped")
    table = _table("\none optimizer step", "layout", *columns, numbers=columns)
    for one in report.costs:
        table.add_row(
            one.layout,
            f"{one.link_bytes / 1e9:.4g} GB",
            seconds(one.seconds),
            "-" if one.compute_seconds is None else seconds(one.compute_seconds),
            "-" if one.share is None else f"{one.share:.0%}",
            "-" if one.hidden_share is None else f"{one.hidden_share:.0%}",
        )
    return table


def _print_summary(report: Report, console: Console) -> None:
    wrong = [one for level in ("fault", "warning") for one in report.findings if one.level == level]
    console.print()
    for one in wrong:
        style = _STYLES[one.level]
        console.print(f"[{style}]{one.level}[/] {escape(f'{one.name}: {one.what}')}\n    {escape(one.remedy)}")
    faults, warnings = len(report.faults), len(wrong) - len(report.faults)
    count = f"{faults} fault{'' if faults == 1 else 's'}, {warnings} warning{'' if warnings == 1 else 's'}"
    console.print(f"[{'bold red' if faults else 'bold green'}]{count}[/] in {len(report.findings)} checks")


def seconds(amount: float) -> str:
    """A time for people, as "1.2 ms"."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if amount * factor < 1000:
            return f"{amount * factor:.3g} {unit}"
    return f"{amount:,.3g} s" if amount < 1000 else f"{amount:,.0f} s"


def _range(ranks: list[int]) -> str:
    whole = len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1))
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {ranks[0]} to {ranks[-1]}" if whole else f"ranks {', '.join(map(str, ranks))}"
