"""Flags of the doctor, the same for `toolkit doctor` and for `python -m toolkit.doctor` under a launcher."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from toolkit.errors import UserError

EXIT_CODES = "Exit code 0 without faults (warnings are none), 1 when a fault was found, 2 for a mistake in the command."


@dataclass(frozen=True)
class Options:
    """What was asked for. wait and seconds in seconds; parameters, tokens and compute_seconds None where not given."""

    json: bool
    output_dir: str
    wait: float
    seconds: float
    parameters: float | None
    model: str | None
    micro_batches: int
    tokens: float | None
    compute_seconds: float | None


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags that every process of the doctor takes."""
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument(
        "--output_dir", "--output-dir", default="outputs/run", metavar="DIR", help="output_dir of the runs to come"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long processes wait for each other in each stage before the doctor ends with what it knows (60)",
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, metavar="SECONDS", help="time for measuring collectives, 0 for none (20)"
    )
    cost = parser.add_argument_group("what communication would cost in a step of training")
    cost.add_argument("--parameters", type=float, metavar="P", help="parameters of the model, for example 8e9")
    cost.add_argument(
        "--model", metavar="FOLDER", help="count them from the config of this model; no weights are loaded"
    )
    cost.add_argument("--micro-batches", type=int, default=1, metavar="N", help="micro-batches a step and device (1)")
    cost.add_argument(
        "--tokens-per-step-per-device",
        type=float,
        metavar="T",
        help="tokens that one device computes in a step: its time is taken from measured matrix products",
    )
    cost.add_argument(
        "--compute-seconds", type=float, metavar="SECONDS", help="computing time of a step, if you know it"
    )


def read_options(arguments: argparse.Namespace) -> Options:
    """Raises UserError for values that mean nothing."""
    positive = ("wait", "parameters", "micro_batches", "tokens_per_step_per_device", "compute_seconds")
    for name in positive:
        value = getattr(arguments, name)
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"--{name.replace('_', '-')} {value:g}: give a number above 0")
    if not 0 <= arguments.seconds < float("inf"):
        raise UserError(f"--seconds {arguments.seconds:g}: give a number from 0 on")
    if arguments.parameters and arguments.model:
        raise UserError("--parameters and --model both say how large the model is; give one of them")
    if arguments.tokens_per_step_per_device and arguments.compute_seconds:
        raise UserError(
            "--tokens-per-step-per-device and --compute-seconds both say how long a step computes; give one"
        )
    needs_size = arguments.tokens_per_step_per_device or arguments.compute_seconds
    if needs_size and not (arguments.parameters or arguments.model):
        raise UserError("--tokens-per-step-per-device and --compute-seconds need --parameters or --model")
    return Options(
        json=arguments.json,
        output_dir=arguments.output_dir,
        wait=arguments.wait,
        seconds=arguments.seconds,
        parameters=arguments.parameters,
        model=arguments.model,
        micro_batches=arguments.micro_batches,
        tokens=arguments.tokens_per_step_per_device,
        compute_seconds=arguments.compute_seconds,
    )
