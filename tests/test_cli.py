"""The `toolkit` command as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-c", "from toolkit.cli import main; main()", "layouts"]


def test_layouts_lists_every_file_with_its_heading() -> None:
    done = subprocess.run(COMMAND, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    files = sorted((ROOT / "accelerate_configs").glob("*.yaml"))
    assert len(files) >= 6
    for file in files:
        heading = file.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()
        assert f"{file.name}\n    {heading}\n" in done.stdout


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(COMMAND, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
