"""What a run achieved: evaluation and exact match of generated answers, before and after, with a few answers to read."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.table import Table

from toolkit.evaluation import Answer
from toolkit.monitor.banner import console, note
from toolkit.run_folder import RunFolder

_SHOWN = 3


def report(
    folder: RunFolder,
    evaluations: dict[str, dict[str, float]],
    before: Sequence[Answer],
    after: Sequence[Answer],
) -> None:
    """Print the before/after table; write predictions.jsonl and the exact match to metrics.jsonl (main process only)."""
    rows = {
        name: (f"{value:.4f}", f"{evaluations['after'][name]:.4f}")
        for name, value in evaluations.get("before", {}).items()
        if not isinstance(value, int)  # how much was evaluated, not how well
    }
    if after:
        exact = [sum(a.exact for a in answers) / len(answers) for answers in (before, after)]
        rows["exact match"] = (f"{exact[0]:.1%}", f"{exact[1]:.1%}")
        _write_predictions(folder, before, after)
        _show_answers(before, after)
    if rows:
        table = Table(title="evaluation on held-out rows", title_justify="left")
        for heading in ("", "before", "after"):
            table.add_column(heading)
        for name, values in rows.items():
            table.add_row(name.removeprefix("eval_"), *values)
        console.print(table)
    folder.record_files(finished=True)
    note(f"model: {folder.model}")


def _write_predictions(folder: RunFolder, before: Sequence[Answer], after: Sequence[Answer]) -> None:
    with folder.predictions.open("w", encoding="utf-8") as file:
        for old, new in zip(before, after, strict=True):
            entry = {
                "row": new.row,
                "prompt": new.prompt,
                "reference": new.reference,
                "before": old.prediction,
                "after": new.prediction,
                "exact_match": new.exact,
            }
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def _show_answers(before: Sequence[Answer], after: Sequence[Answer]) -> None:
    for old, new in zip(before[:_SHOWN], after[:_SHOWN], strict=True):
        note(f"row {new.row}: expected {new.reference!r}\n  before: {old.prediction!r}\n  after:  {new.prediction!r}")
