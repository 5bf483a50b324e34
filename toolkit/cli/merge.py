"""Merge an adapter into its base, and prove that the merged model is the model that was trained.

    toolkit merge OUTPUT [--output FOLDER] [--dtype bfloat16]

Needs no accelerator. The folder is read again with plain transformers, and its logits on training rows are compared with
those of the adapter on its base, and of the base alone. Exit code 1, and no folder, if training was lost.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.errors import UserError
from toolkit.new_output import check_new

HELP = "merge an adapter into its base, with a proof"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What, where to, and in which precision."""
    parser.add_argument("run", type=Path, help="a run's folder, an adapter's, or a checkpoint's")
    parser.add_argument("--output", type=Path, help="folder to make; default: RUN/merged, or beside an adapter")
    parser.add_argument("--dtype", help="float32, bfloat16 or float16; default: what the base is stored in")


def run(arguments: argparse.Namespace) -> None:
    """Merge and compare. Raises UserError for what cannot be merged, SystemExit(1) for a merge that lost the training."""
    from transformers import AutoTokenizer

    from toolkit.finished import base_in, find
    from toolkit.merge.merge import merge
    from toolkit.merge.rows import rows_to_compare
    from toolkit.monitor.banner import bar, note, print_table
    from toolkit.recorded import config_in
    from toolkit.run_folder import note_merged

    place = find(arguments.run)
    output = arguments.output or _default_output(arguments.run, place.path)
    check_new(output, "--output")
    if base_in(place) is None:
        raise UserError(f"{place.path} is a whole model already; there is nothing to merge")
    tokenizer = AutoTokenizer.from_pretrained(place.description)
    rows = rows_to_compare(config_in(place.path.parent), tokenizer, note)
    with bar(active=True, transient=True) as progress:
        task = progress.add_task("merge", total=None)
        merged = merge(
            arguments.run, output, rows, dtype=arguments.dtype, say=note,
            progress=lambda done, of: progress.update(task, completed=done, total=of),
        )  # fmt: skip
    proof = merged.proof
    print_table(
        f"logits on {len(rows)} rows, relative to the largest",
        {
            "trained - base": f"{proof.trained_base:.1e}  what training changed",
            "merged - trained": f"{proof.merged_trained:.1e}  what merging changed, of {proof.tolerance:.0e} allowed",
            "merged - base": f"{proof.merged_base:.1e}",
        },
    )
    if proof.fault is not None:
        raise SystemExit(f"error: {proof.fault}; {output} was not made")  # with exit code 1
    if arguments.output is None:
        note_merged(output.parent)
    note(merged.describe())
    note(f"merged model: {output}")


def _default_output(run: Path, found: Path) -> Path:
    """Of a run's folder it is RUN/merged; of an adapter's or a checkpoint's, beside it."""
    return run / "merged" if found != run else found.absolute().with_name(found.absolute().name + "-merged")
