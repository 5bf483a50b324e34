"""A SLURM batch script that a person can read and keep: one task a node, a save before the limit, and a return to the queue."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import STOPPED_EXIT_CODE, UserError

# D-HH:MM:SS and its shorter forms, as sbatch reads them.
_TIME = re.compile(r"(?:\d+-\d+(?::\d+){0,2}|\d+(?::\d+){0,2})")


@dataclass(frozen=True)
class Request:
    """What is asked of the scheduler. signal_before: seconds before the time limit at which a run begins to save."""

    nodes: int
    time: str
    gpus_per_node: int | None = None
    job_name: str = "toolkit"
    partition: str | None = None
    account: str | None = None
    signal_before: int = 120
    more: tuple[str, ...] = ()


def batch_script(request: Request, recipe: Path, launch: Sequence[str], flags: Sequence[str], command: str) -> str:
    """The text of the script. launch: arguments of `toolkit launch` before the `--`, recipe among them; flags: the
    recipe's; command: how this script was made, for its head. Raises UserError for a time that sbatch would not take.
    """
    if not _TIME.fullmatch(request.time):
        raise UserError(f"--time {request.time}: give it as sbatch reads it, such as 04:00:00 or 1-12:00:00")
    resume = [] if any(flag.split("=")[0] == "--resume" for flag in flags) else ["--resume", "auto"]
    start = shlex.join(["toolkit", "launch", *launch, "--", *resume, *flags])
    return f"""\
#!/bin/bash
# {recipe.name} under SLURM. Submit it with: sbatch SCRIPT
# Made with: {command}
{_requests(request)}
cd "$SLURM_SUBMIT_DIR"
{_environment()}
# One task a node, which starts one process per device there. A task that ends leaves the others 60 s to end by themselves,
# since they save together; after that srun ends them.
srun --kill-on-bad-exit=0 --wait=60 {start} &
step=$!

# SLURM sends USR1 to this script alone; srun hands it on to the tasks, and they to their processes, which save and end.
asked=
trap 'asked=1; kill -USR1 $step' USR1
while true; do
    wait $step
    code=$?
    kill -0 $step 2>/dev/null || break  # `wait` also returns when a signal has come in
done

# {STOPPED_EXIT_CODE} says: stopped after saving. Back into the queue under the same job id; --resume auto then goes on.
if [ -n "$asked" ] && [ $code -eq {STOPPED_EXIT_CODE} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
"""


def _requests(request: Request) -> str:
    lines = [
        (f"--job-name={request.job_name}", ""),
        (f"--nodes={request.nodes}", ""),
        ("--ntasks-per-node=1", "the task starts the processes of its node"),
    ]
    if request.gpus_per_node:
        lines.append((f"--gpus-per-node={request.gpus_per_node}", ""))
    lines += [(f"--partition={request.partition}", "")] * bool(request.partition)
    lines += [(f"--account={request.account}", "")] * bool(request.account)
    lines += [
        (f"--time={request.time}", ""),
        (f"--signal=B:USR1@{request.signal_before}", f"to this script, {request.signal_before} s before the limit"),
        ("--requeue", ""),
        ("--open-mode=append", "one log for all returns to the queue"),
        ("--output=%x-%j.out", ""),
    ]
    lines += [(option, "") for option in request.more]
    return "\n".join(f"#SBATCH {option}" + (f"  # {why}" if why else "") for option, why in lines)


def _environment() -> str:
    """The environment that the script was made in, for the nodes."""
    if sys.prefix == sys.base_prefix:
        return f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n" if os.environ.get("PATH") else ""
    return f"source {shlex.quote(str(Path(sys.prefix) / 'bin' / 'activate'))}\n"
