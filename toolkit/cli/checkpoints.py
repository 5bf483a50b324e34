"""List the checkpoints of a run and verify them: names, sizes and the checksum of every file.

    toolkit checkpoints OUTPUT [--quick]

Exit code 2 when one of them is damaged.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.errors import UserError

HELP = "list and verify the checkpoints of a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder, and how much is read."""
    parser.add_argument("output", type=Path, help="output_dir of a run, or one checkpoint")
    parser.add_argument("--quick", action="store_true", help="compare names and sizes only, not contents")


def run(arguments: argparse.Namespace) -> None:
    """Print a table. Raises UserError when there is nothing, or something is damaged."""
    from rich.table import Table

    from toolkit.checkpoint.folder import MARKER, find_checkpoints, open_checkpoint, wrong_files
    from toolkit.monitor.banner import console

    if not arguments.output.is_dir():
        raise UserError(f"{arguments.output.absolute()} is not a folder")
    single = (arguments.output / MARKER).exists()
    found = [open_checkpoint(arguments.output)] if single else find_checkpoints(arguments.output)
    if not found:
        raise UserError(f"there is no checkpoint in {arguments.output.absolute()}")
    table = Table(title=f"checkpoints of {arguments.output}", title_justify="left")
    for heading in ("step", "size", "files", "layout", "best", "state"):
        table.add_column(heading)
    damaged = []
    for one in found:
        wrong = [] if one.fault or arguments.quick else wrong_files(one, one.files)
        fault = one.fault or (f"{', '.join(wrong)}: not the contents that were written" if wrong else None)
        damaged += [one.path.name] if fault else []
        layout, best = one.record.get("layout") or {}, one.record.get("best")
        table.add_row(
            f"{one.step} of {one.record.get('total_steps', '?')}",
            f"{one.bytes / 1e6:,.1f} MB",
            str(len(one.files)),
            f"{layout.get('name', '?')}, {layout.get('processes', '?')} processes",
            f"{best['metric']} {best['value']:.4f} at step {best['step']}" if best else "",
            fault or ("whole by names and sizes" if arguments.quick else "whole"),
        )
    console.print(table)
    if damaged:
        raise UserError(f"damaged: {', '.join(damaged)}; a run with --resume auto goes on from the newest whole one")
