"""Check this machine, or with --layout a group of processes on it, before trusting it with a run.

    toolkit doctor
    toolkit doctor --layout ddp --parameters 8e9 --tokens-per-step-per-device 16384

On several nodes the launcher of each starts it: accelerate launch ... -m toolkit.doctor (docs/doctor.md).
Exit code 0 without faults (warnings are none), 1 when a fault was found, 2 for a mistake in the command.
"""

from __future__ import annotations

import argparse
import sys

from toolkit.doctor.options import add_options, read_options
from toolkit.errors import UserError

HELP = "check a machine or cluster, measure its collectives, and say what a step would cost"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the doctor, and which processes to start."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--layout", metavar="NAME", help="a file of accelerate_configs/, or a path: check as its group")
    parser.add_argument(
        "--num_processes", type=int, metavar="N", help="processes to start instead of the layout's number"
    )
    add_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print the report and end with its exit code. Raises UserError for mistakes in the command."""
    options = read_options(arguments)
    from toolkit.doctor.__main__ import examine_here
    from toolkit.doctor.terminal import quiet_stdout, show

    if not arguments.layout:
        if arguments.num_processes is not None:
            raise UserError("--num_processes needs --layout, which says how the processes form a group")
        examine_here(options)
    from toolkit.doctor.launching import launch_group

    with quiet_stdout() as out:
        report = launch_group(arguments.layout, arguments.num_processes, options)
        show(report, options.json, out)
    sys.exit(report.exit_code)
