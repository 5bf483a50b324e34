"""Everything that `toolkit inspect` shows, as one dataclass of plain values; --json prints exactly this."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from toolkit.config import RunConfig
from toolkit.inspect.batches import Layout, first_micro_batches
from toolkit.inspect.collect import Collected
from toolkit.inspect.figures import Figures, SourceFigures, figures, source_figures
from toolkit.inspect.findings import Finding, findings
from toolkit.inspect.repeats import Repeats, repeats
from toolkit.inspect.rows import ShownRow, chosen_rows, shown_row
from toolkit.inspect.scan import scan


@dataclass(frozen=True)
class Head:
    """What the figures are about. notes: what the data layer said while it read."""

    config: str
    model: str
    tokenizer: str
    vocabulary: int
    template: str
    train: str
    eval: str
    notes: list[str]


@dataclass(frozen=True)
class Report:
    """All figures, and the rows shown."""

    head: Head
    findings: list[Finding]
    train: Figures
    eval: Figures | None
    sources: list[SourceFigures]
    repeats: Repeats
    layout: Layout
    rows: list[ShownRow]


def build_report(
    config: RunConfig,
    head: Head,
    data: Collected,
    *,
    rows: int,
    hidden_size: int | None,
    devices: int,
    device_type: str,
) -> Report:
    """Compute everything: two passes over the rows (training, evaluation), and `rows` rows to show."""
    train_scan = scan(data.train.rows, data.decode, data.special)
    train, held_out, eval_scan = figures(data, data.train, train_scan), None, None
    if data.eval is not None:
        eval_scan = scan(data.eval.rows, data.decode, data.special)
        held_out = figures(data, data.eval, eval_scan)
    sources = source_figures(data.sources, train_scan)
    found = repeats(data, train_scan, eval_scan)
    return Report(
        head=head,
        findings=findings(train, held_out, sources, found),
        train=train,
        eval=held_out,
        sources=sources,
        repeats=found,
        layout=first_micro_batches(
            config, data.train, hidden_size=hidden_size, devices=devices, device_type=device_type
        ),
        rows=[shown_row(data, data.train, row) for row in chosen_rows(len(data.train.rows), rows)],
    )


def to_json(report: Report) -> str:
    """The report as JSON in plain ASCII, which any terminal and pipe can carry."""
    return json.dumps(asdict(report), indent=1)
