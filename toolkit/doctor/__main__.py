"""One process of the doctor: what a launcher starts on every node, as a module or by the path of this file.

accelerate launch --config_file accelerate_configs/ddp.yaml -m toolkit.doctor [--json] ...
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from toolkit.doctor.options import Options


def main() -> None:
    """Examine with the others, print on the main process, and end with the exit code."""
    # Started by its path, this file's folder comes first where modules are looked for, and its files could hide others.
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    from toolkit.doctor.options import EXIT_CODES, add_options, read_options
    from toolkit.errors import exit_with_message

    parser = argparse.ArgumentParser(prog="python -m toolkit.doctor", description=__doc__, epilog=EXIT_CODES)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_options(parser)
    parser.add_argument("--write", metavar="FILE", help="write the JSON object to FILE instead of printing a report")
    arguments = parser.parse_args()
    exit_with_message(lambda: examine_here(read_options(arguments), arguments.write))


def examine_here(options: Options, file: str | None = None) -> NoReturn:
    """Examine as the process that the environment says this is, publish on the main one, and end with the exit code."""
    # Connections that fail are findings here; torch's C++ stack traces would stand between them.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    from toolkit.doctor.examine import examine
    from toolkit.doctor.facts import Place
    from toolkit.doctor.meeting import Unreachable
    from toolkit.doctor.report import Report, to_json
    from toolkit.doctor.terminal import quiet_stdout, show

    place, codes = Place.here(), [0]
    with quiet_stdout() as out:

        def publish(report: Report) -> None:
            codes.append(report.exit_code)
            if file:
                Path(file).write_text(json.dumps(to_json(report)), encoding="utf-8")
            else:
                show(report, options.json, out)

        try:
            examine(options, place, publish)
        except Unreachable as error:
            print(f"[rank {place.rank}] fault: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    sys.exit(codes[-1])


if __name__ == "__main__":
    main()
