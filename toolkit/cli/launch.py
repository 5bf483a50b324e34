"""Start a recipe on a layout: on this machine, or on all nodes that a scheduler has given.

    toolkit launch RECIPE --layout NAME [--num_processes N] [--dry-run] [-- recipe flags]
    srun --ntasks-per-node=1 toolkit launch RECIPE --layout NAME -- recipe flags
    toolkit launch RECIPE --layout NAME --slurm FILE --nodes 4 --gpus-per-node 8 --time 04:00:00 -- recipe flags

Prints the `accelerate launch` command that it runs. Exits with the code of the recipe: 2 a user's mistake, 3 numbers that
are not finite, 4 a hang, 75 stopped after saving.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from toolkit.errors import UserError

HELP = "start a recipe on a layout, here or on the nodes of a scheduler"
TAKES_CONFIG = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this verb; those of the recipe come after `--`."""
    parser.usage = "toolkit launch RECIPE --layout NAME [options] [-- recipe flags]"
    parser.allow_abbrev = False
    parser.add_argument("recipe", help="name of a recipe (sft) or path of a script")
    parser.add_argument("--layout", required=True, help="name of a file in accelerate_configs/, or a path")
    parser.add_argument("--num_processes", type=int, help="processes of the whole run; default: one per device")
    parser.add_argument("--nodes", type=int, help="nodes; with --slurm how many to ask for, otherwise to be sure of")
    parser.add_argument("--dry-run", action="store_true", help="print the command and do not run it")
    slurm = parser.add_argument_group("writing a SLURM batch script")
    slurm.add_argument("--slurm", metavar="FILE", help="write a batch script instead of running anything")
    slurm.add_argument("--gpus-per-node", type=int, help="devices to ask for on each node")
    slurm.add_argument("--time", help="time limit, as sbatch reads it")
    slurm.add_argument("--job-name", help="default: the recipe's name")
    slurm.add_argument("--partition")
    slurm.add_argument("--account")
    slurm.add_argument("--signal-before", type=int, default=120, help="seconds before the limit to save and requeue at")
    slurm.add_argument(
        "--sbatch", action="append", default=[], metavar="OPTION", help="another option, may be repeated"
    )
    slurm.add_argument("--overwrite", action="store_true", help="replace an existing FILE")


def run(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Write the script, or start the processes of this node and end with their exit code. Raises UserError."""
    from toolkit.cluster.command import find_layout, find_script, recipe_flags

    flags = recipe_flags("launch", rest)
    layout, script = find_layout(arguments.layout), find_script(arguments.recipe)
    for name in ("nodes", "gpus_per_node", "signal_before"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UserError(f"--{name}: must be at least 1, got {value}")
    if arguments.slurm is not None:
        _write_script(arguments, script, layout, flags)
        return
    asked = {"--gpus-per-node": arguments.gpus_per_node, "--time": arguments.time, "--sbatch": arguments.sbatch}
    for name, value in asked.items():
        if value:
            raise UserError(f"{name} is for the batch script; name its file with --slurm FILE")
    _launch(arguments, script, layout, flags)


def _launch(arguments: argparse.Namespace, script: Path, layout: Path, flags: list[str]) -> None:
    from toolkit.cluster.allocation import read_allocation
    from toolkit.cluster.command import build_command
    from toolkit.cluster.machine import count_accelerators
    from toolkit.cluster.running import run_command
    from toolkit.route import interface_towards

    allocation = read_allocation(os.environ)
    if arguments.nodes is not None and arguments.nodes != allocation.nodes:
        raise UserError(
            f"--nodes is {arguments.nodes}, but {allocation.scheduler} gives {allocation.nodes}; start one task per node "
            "under a scheduler (docs/clusters.md), or leave it out"
        )
    command = build_command(
        layout,
        script,
        flags,
        allocation,
        num_processes=arguments.num_processes,
        devices_here=count_accelerators,
        # What the user has chosen holds.
        interface_to=(lambda head: None) if "GLOO_SOCKET_IFNAME" in os.environ else interface_towards,
    )
    for line in command.derived:
        print(f"launch: {line}", file=sys.stderr)
    print(command.text, file=sys.stdout if arguments.dry_run else sys.stderr, flush=True)
    if not arguments.dry_run:
        code = run_command(command)
        sys.stdout.flush()
        if code:
            sys.exit(code)


def _write_script(arguments: argparse.Namespace, script: Path, layout: Path, flags: list[str]) -> None:
    from toolkit.cluster.batch_script import Request, batch_script
    from toolkit.cluster.command import read_layout

    read_layout(layout)
    if arguments.nodes is None or arguments.time is None:
        raise UserError("--slurm needs --nodes and --time")
    if arguments.gpus_per_node is None and arguments.num_processes is None:
        raise UserError(
            "--slurm needs --gpus-per-node, or on nodes without accelerators --num_processes of the whole run"
        )
    file = Path(arguments.slurm)
    if file.exists() and not arguments.overwrite:
        raise UserError(f"--slurm {file}: the file exists; choose another, or --overwrite")
    request = Request(
        nodes=arguments.nodes,
        time=arguments.time,
        gpus_per_node=arguments.gpus_per_node,
        job_name=arguments.job_name or script.stem,
        partition=arguments.partition,
        account=arguments.account,
        signal_before=arguments.signal_before,
        more=tuple(arguments.sbatch),
    )
    launch = [str(script), "--layout", arguments.layout, "--nodes", str(arguments.nodes)]
    if arguments.num_processes is not None:
        launch += ["--num_processes", str(arguments.num_processes)]
    text = batch_script(request, script, launch, flags, shlex.join(["toolkit", *sys.argv[1:]]))
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--slurm {file}: cannot be written: {error.strerror}") from None
    file.chmod(0o755)
    print(f"batch script: {file}; look at it, then: sbatch {file}")
