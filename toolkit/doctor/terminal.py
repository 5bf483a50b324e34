"""Standard output holds the report and nothing else, whatever libraries print on it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console

from toolkit.doctor.report import Report, to_json
from toolkit.doctor.table import print_report

_WIDTH = 120


@contextmanager
def quiet_stdout() -> Iterator[TextIO]:
    """The real standard output; meanwhile file descriptor 1, on which C++ libraries write too, leads to standard error."""
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    out = os.fdopen(os.dup(real), "w", encoding=sys.stdout.encoding, errors="backslashreplace")
    try:
        yield out
        out.flush()
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)


def show(report: Report, as_json: bool, out: TextIO) -> None:
    """Print the report to `out` as a table or as one JSON object."""
    if as_json:
        print(json.dumps(to_json(report)), file=out)
    else:
        console = Console(file=out, soft_wrap=True, highlight=False)
        if not console.is_terminal:
            console.width = max(console.width, _WIDTH)  # in a job's log nobody has chosen 80 columns
        print_report(report, console)
    out.flush()
