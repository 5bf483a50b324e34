"""The `toolkit` command: one file a verb, one line here for each."""

from __future__ import annotations

import argparse
import os
import sys
from types import ModuleType

from toolkit import __version__
from toolkit.cli import chat, checkpoints, doctor, export, inspect, launch, layouts, merge, parity, prepare
from toolkit.errors import exit_with_message

VERBS: dict[str, ModuleType] = {
    "launch": launch,
    "inspect": inspect,
    "prepare": prepare,
    "layouts": layouts,
    "doctor": doctor,
    "parity": parity,
    "checkpoints": checkpoints,
    "export": export,
    "merge": merge,
    "chat": chat,
}


def main() -> None:
    """Parse the verb and run it."""
    parser = argparse.ArgumentParser(prog="toolkit", description="Fine-tuning on Hugging Face Accelerate.")
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, module in VERBS.items():
        module.add_arguments(verbs.add_parser(name, help=module.HELP, description=module.__doc__))
    arguments, rest = parser.parse_known_args()
    verb = VERBS[arguments.verb]
    # A verb that takes a configuration checks what is left itself, and better: it knows all keys.
    takes_config = getattr(verb, "TAKES_CONFIG", False)
    if rest and not takes_config:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        exit_with_message(lambda: verb.run(arguments, rest) if takes_config else verb.run(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough; nothing is left to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
