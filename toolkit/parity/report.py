"""The outcome of all layouts: for a terminal, as Markdown to paste into a page, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from toolkit.parity.compare import FP32, Comparison, Difference, Point, relative
from toolkit.parity.run import LayoutRun, Outcome

_COLUMNS = ("layout", "processes", "steps", "loss", "grad_norm", "learning rate", "rows", "verdict")
_AROUND = 2  # steps shown before and after the first difference
_NAMED = 6  # parameters named
_BARS = "▁▂▃▄▅▆▇█"
_BARS_IN_LINE = 40
_SMALLEST = 1e-9  # a relative difference that is drawn as the lowest bar


@dataclass(frozen=True)
class Row:
    """A layout, its run, and how it compares with the first one; None for the first one and for a run that failed."""

    run: LayoutRun
    outcome: Outcome
    comparison: Comparison | None

    @property
    def verdict(self) -> str:
        """One or a few words."""
        if self.outcome.failed:
            return f"failed, exit code {self.outcome.exit_code}"
        return "reference" if self.comparison is None else self.comparison.verdict

    @property
    def differs(self) -> bool:
        """False too for a run that failed."""
        return self.comparison is not None and self.comparison.first is not None


def print_report(rows: Sequence[Row], console: Console) -> None:
    """The table, the differences by step as bars, and what there is to say of each layout that differs or failed."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in _COLUMNS:
        number = column in ("processes", "steps", "loss", "grad_norm")
        # On a narrow terminal words go to the next line: "learning rate", and verdicts of several words.
        longest = max(map(len, column.split()), default=0)
        table.add_column(
            column,
            justify="right" if number else "left",
            no_wrap=number or column == "layout",
            min_width=max(longest, 9) if column == "verdict" else longest,
        )
    for row in rows:
        style = "red" if row.differs or row.outcome.failed else ""
        table.add_row(*_cells(row)[:-1], Text(row.verdict, style))
    console.print(table)
    console.print(f"loss, grad_norm: the largest relative difference of any step; {_bounds_said(rows)}")
    plots = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for row in rows:
        if row.comparison is not None:
            plots.add_row(row.run.name, bars(row.comparison))
    if plots.row_count:
        console.print(
            Group(Text("\nrelative difference by step, logarithmic; the highest bar is over the bound"), plots)
        )
    for row in rows:
        if row.comparison is not None and row.comparison.first is not None:
            console.print(_around(rows[0], row, row.comparison.first))
            for line in explained(row.comparison.first):
                console.print(f"  {line}", markup=False)
        if row.outcome.exit_code:
            console.print(f"\n{row.run.name}: {row.outcome.message}", markup=False)


def bars(comparison: Comparison) -> str:
    """A bar for each step, or for the worst of some steps where there are many."""
    values, width = comparison.by_step, max(1, math.ceil(len(comparison.by_step) / _BARS_IN_LINE))
    parts = [values[start : start + width] for start in range(0, len(values), width)]
    worst = [math.nan if any(map(math.isnan, part)) else max(part) for part in parts]
    bound = max(comparison.bounds.loss, comparison.bounds.grad_norm)
    return "".join(_bar(value, bound) for value in worst)


def explained(first: Difference) -> list[str]:
    """Sentences: what differs first, and in which parameters."""
    lines = [f"step {first.step}: {'; '.join(first.reasons)}"]
    if first.parameters:
        shown = ", ".join(first.parameters[:_NAMED])
        more = len(first.parameters) - _NAMED
        lines.append(
            f"gradients that differ there: {len(first.parameters)} of {first.of_parameters} parameters, in the order of the "
            f"model: {shown}" + (f" and {more} more, the last {first.parameters[-1]}" if more > 0 else "")
        )
    elif first.of_parameters:
        lines.append("no parameter's gradient differs there")
    return lines


def to_markdown(rows: Sequence[Row], command: str, versions: str) -> str:
    """Two tables: one row per layout, one row per step."""
    lines = [f"`{command}`, {versions}", "", _markdown_row(_COLUMNS), _markdown_row(["---"] * len(_COLUMNS))]
    lines += [_markdown_row(_cells(row)) for row in rows]
    lines += [
        "",
        f"loss, grad_norm: the largest relative difference of any step from {rows[0].run.name}; {_bounds_said(rows)}",
    ]
    for row in rows:
        if row.comparison is not None and row.comparison.first is not None:
            lines += ["", f"{row.run.name}: " + ". ".join(explained(row.comparison.first)) + "."]
        if row.outcome.exit_code:
            lines += ["", f"{row.run.name}: `{' '.join(row.outcome.message.split())}`"]
    others = [row for row in rows[1:] if not row.outcome.failed]
    heads = ["step", "learning rate", "loss", "grad_norm"]
    heads += [f"{row.run.name}: {name}" for row in others for name in ("loss", "grad_norm")]
    lines += ["", _markdown_row(heads), _markdown_row(["---"] * len(heads))]
    for index, point in enumerate(rows[0].outcome.curve):
        cells = [str(point.step), f"{point.learning_rate:.6g}", f"{point.loss:.6f}", f"{point.grad_norm:.6f}"]
        for row in others:
            curve = row.outcome.curve
            there = curve[index] if index < len(curve) else None
            cells += _relative_cells(point, there)
        lines.append(_markdown_row(cells))
    return "\n".join([*lines, ""])


def to_json(rows: Sequence[Row], command: str, versions: str) -> str:
    """All there is: settings, verdicts and curves. Numbers that are not finite are written as text."""
    layouts = []
    for row in rows:
        layouts.append(
            {
                "name": row.run.name,
                "file": str(row.run.file),
                "processes": row.run.processes,
                "verdict": row.verdict,
                "exit_code": row.outcome.exit_code,
                "message": row.outcome.message,
                "comparison": None if row.comparison is None else dataclasses.asdict(row.comparison),
                "curve": [dataclasses.asdict(point) for point in row.outcome.curve],
            }
        )
    return json.dumps(
        _finite({"command": command, "versions": versions, "layouts": layouts}), indent=1, allow_nan=False
    )


def _cells(row: Row) -> list[str]:
    comparison, curve = row.comparison, row.outcome.curve
    head = [row.run.name, str(row.run.processes), str(len(curve))]
    if comparison is None:
        return [*head, "", "", "", "", row.verdict]
    worst = [f"{comparison.worst_loss:.1e}", f"{comparison.worst_grad_norm:.1e}"]
    equal = [("equal" if same else "differs") for same in (comparison.learning_rate_equal, comparison.rows_equal)]
    return [*head, *worst, *equal, row.verdict]


def _bounds_said(rows: Sequence[Row]) -> str:
    """Each kind of bounds that was used, in words."""
    used = dict.fromkeys(row.comparison.bounds for row in rows if row.comparison is not None)
    said = [f"{b.name} up to {b.loss:g} and {b.grad_norm:g}" for b in used]
    return "bounds: " + "; ".join(said) if said else "nothing could be compared"


def _bar(value: float, bound: float) -> str:
    if not value <= bound:
        return _BARS[-1]
    share = math.log(max(value, _SMALLEST) / _SMALLEST) / math.log(bound / _SMALLEST)
    return _BARS[min(len(_BARS) - 2, int(share * (len(_BARS) - 1)))]


def _around(reference: Row, row: Row, first: Difference) -> Table:
    """The steps around the first difference, the reference's value beside this one's."""
    title = f"\n{reference.run.name} and {row.run.name} around the first difference"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    names = {"loss": ".7g", "grad_norm": ".7g", "learning_rate": ".6g", "label_tokens": "d"}
    for column in ("step", *(part for name in names for part in (name, ""))):
        table.add_column(column, justify="right", no_wrap=True)
    for theirs, ours in zip(reference.outcome.curve, row.outcome.curve, strict=False):
        if abs(theirs.step - first.step) > _AROUND:
            continue
        cells: list[str | Text] = [str(theirs.step)]
        for name, shape in names.items():
            value, wanted = getattr(ours, name), getattr(theirs, name)
            near = relative(value, wanted) <= FP32.loss
            cells += [format(wanted, shape), Text(format(value, shape), "" if near else "red")]
        table.add_row(*cells, style="bold" if theirs.step == first.step else "")
    return table


def _relative_cells(point: Point, there: Point | None) -> list[str]:
    if there is None:
        return ["", ""]
    return [f"{relative(getattr(there, name), getattr(point, name)):.1e}" for name in ("loss", "grad_norm")]


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
