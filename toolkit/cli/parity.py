"""Run a recipe for some steps on several layouts and say whether all follow the same curve.

    toolkit parity RECIPE --layouts single,ddp,fsdp2:4,hsdp [--steps 20] [--output DIR] [--cpu] [-- recipe flags]

A layout is the name of a file in accelerate_configs/ or a path, with a number of processes after a colon if it shall not be
the file's. The first is what the others are compared with. Exit code 0 when all are the same within their precision, 1 when
one differs or fails, 2 for a user's mistake, also one that a recipe finds.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.errors import BUG_EXIT_CODE, USER_ERROR_EXIT_CODE, UserError

if TYPE_CHECKING:
    from toolkit.cluster.command import Command
    from toolkit.parity.report import Row
    from toolkit.parity.run import LayoutRun, Outcome

HELP = "run a recipe on several layouts and compare the curves step by step"
TAKES_CONFIG = True
_RECORD = "parity.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this verb; those of the recipe come after `--`."""
    parser.usage = "toolkit parity RECIPE --layouts NAME,NAME[:PROCESSES],... [options] [-- recipe flags]"
    parser.allow_abbrev = False
    parser.add_argument("recipe", help="name of a recipe (sft) or path of a script")
    parser.add_argument("--layouts", required=True, help="names in accelerate_configs/ or paths, separated by commas")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps of each run")
    parser.add_argument("--output", type=Path, default=Path("outputs/parity"), help="folder of the runs and the tables")
    parser.add_argument("--cpu", action="store_true", help="run on CPU processes also where there are accelerators")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier comparison in the folder")


def run(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Run all layouts, print and save the comparison, and end with the exit code that it deserves."""
    from toolkit.cluster.command import find_script, recipe_flags
    from toolkit.cluster.machine import count_accelerators
    from toolkit.parity.run import check_flags, command_of, read_layouts

    flags = recipe_flags("parity", rest)
    check_flags(flags)
    if arguments.steps < 1:
        raise UserError(f"--steps: must be at least 1, got {arguments.steps}")
    script, layouts = find_script(arguments.recipe), read_layouts(arguments.layouts)
    devices = 0 if arguments.cpu else count_accelerators()
    folder, overwrite = arguments.output, arguments.overwrite
    # All commands before the first run, so that sizes that do not fit are not found after an hour.
    commands = [
        command_of(one, script, flags, folder, arguments.steps, overwrite=overwrite, devices=devices) for one in layouts
    ]
    _claim(folder, overwrite=overwrite)
    outcomes: list[Outcome] = []
    for layout, command in zip(layouts, commands, strict=True):
        outcomes.append(_run_one(layout, command, folder, arguments.steps, cpu=arguments.cpu))
        if outcomes[0].failed:
            message = f"{layout.name}, which the others are compared with, failed: {outcomes[0].message}"
            if outcomes[0].exit_code == USER_ERROR_EXIT_CODE:
                raise UserError(f"{message} ({folder / layout.name}.log)")
            print(f"{message}\n({folder / layout.name}.log)", file=sys.stderr)
            sys.exit(BUG_EXIT_CODE)
    sys.exit(_report(_rows(layouts, outcomes), folder))


def _claim(folder: Path, *, overwrite: bool) -> None:
    """Make the folder, or take an earlier comparison's."""
    try:
        there = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
        if there and not overwrite:
            raise UserError(f"--output {folder}: the folder is not empty; choose another, or --overwrite")
        if there and _RECORD not in there:
            raise UserError(
                f"--output {folder}: has no {_RECORD}, so what is there is not a comparison; choose another folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _RECORD).write_text("{}", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output {folder}: {error.strerror}") from None


def _run_one(layout: LayoutRun, command: Command, folder: Path, steps: int, *, cpu: bool) -> Outcome:
    """With a bar on a terminal, and a line before and after elsewhere."""
    from rich.progress import MofNCompleteColumn

    from toolkit.monitor.banner import bar, console
    from toolkit.parity.run import execute

    log = folder / f"{layout.name}.log"
    if not console.is_terminal:
        console.print(f"{layout.name}: {layout.processes} processes, {steps} steps; log: {log}", markup=False)
    with bar(MofNCompleteColumn(), active=True) as progress:
        task = progress.add_task(layout.name, total=steps)
        outcome = execute(
            command, folder / layout.name, log, cpu=cpu, at_step=lambda step: progress.update(task, completed=step)
        )
    if not console.is_terminal:
        ended = "done" if outcome.exit_code == 0 else f"ended with exit code {outcome.exit_code}"
        console.print(f"{layout.name}: {ended} after {len(outcome.curve)} steps", markup=False)
    return outcome


def _rows(layouts: Sequence[LayoutRun], outcomes: Sequence[Outcome]) -> list[Row]:
    from toolkit.parity.compare import bounds_of, compare
    from toolkit.parity.report import Row

    rows = [Row(layouts[0], outcomes[0], None)]
    reference = (layouts[0].settings, outcomes[0].dtype)
    for layout, outcome in zip(layouts[1:], outcomes[1:], strict=True):
        bounds = bounds_of([reference, (layout.settings, outcome.dtype)])
        comparison = None if outcome.failed else compare(outcomes[0].curve, outcome.curve, bounds)
        rows.append(Row(layout, outcome, comparison))
    return rows


def _report(rows: Sequence[Row], folder: Path) -> int:
    """Print and save it; returns the exit code."""
    import accelerate
    import torch
    import transformers

    from toolkit.monitor.banner import console
    from toolkit.parity.report import print_report, to_json, to_markdown

    command = shlex.join(["toolkit", *sys.argv[1:]])
    versions = (
        f"torch {torch.__version__}, accelerate {accelerate.__version__}, transformers {transformers.__version__}"
    )
    print_report(rows, console)
    (folder / "parity.md").write_text(to_markdown(rows, command, versions), encoding="utf-8")
    (folder / _RECORD).write_text(to_json(rows, command, versions) + "\n", encoding="utf-8")
    console.print(
        f"\nsaved: {folder / 'parity.md'}, {folder / _RECORD}; the runs: {folder}/NAME and NAME.log", markup=False
    )
    if any(row.outcome.exit_code == USER_ERROR_EXIT_CODE for row in rows):
        return USER_ERROR_EXIT_CODE
    return BUG_EXIT_CODE if any(row.differs or row.outcome.failed for row in rows) else 0
