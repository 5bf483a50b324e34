"""Make a plain Hugging Face folder of a checkpoint, such as the best one, as a finished run leaves it.

    toolkit export OUTPUT/checkpoint-200 FOLDER

Needs no accelerator; one process reads the checkpoint of any layout.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.errors import UserError
from toolkit.new_output import check_new

HELP = "make a Hugging Face folder of a checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """From where to where."""
    parser.add_argument("checkpoint", type=Path, help="a checkpoint's folder")
    parser.add_argument("folder", type=Path, help="folder to make; must not exist")


def run(arguments: argparse.Namespace) -> None:
    """Read, check and write. Raises UserError for a damaged checkpoint or a folder that exists."""
    from toolkit.checkpoint.folder import wrong_files
    from toolkit.checkpoint.resume import named_checkpoint
    from toolkit.export import export_checkpoint
    from toolkit.monitor.banner import note

    check_new(arguments.folder, "FOLDER")
    checkpoint = named_checkpoint(arguments.checkpoint)
    wrong = wrong_files(checkpoint, checkpoint.files)
    if wrong:
        raise UserError(f"{checkpoint.path}: {wrong[0]} does not have the contents that were written")
    export_checkpoint(checkpoint.path, arguments.folder)
    note(f"model of step {checkpoint.step}: {arguments.folder}")
