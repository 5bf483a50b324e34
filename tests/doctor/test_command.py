"""`toolkit doctor` as a user types it: mistakes, one process, and what reaches the launched processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.cluster.command import find_layout
from toolkit.doctor.launching import command
from toolkit.doctor.options import Options
from toolkit.errors import UserError

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from toolkit.cli import main; main()", "doctor"]


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Offline, in the repository."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layout", "dpd"], "--layout dpd: no such layout, did you mean ddp?"),
        (["--layout", "README.md"], "README.md: cannot be read"),
        (["--layout", "ddp", "--num_processes", "0"], "--num_processes: must be at least 1, got 0"),
        (["--num_processes", "2"], "--num_processes needs --layout"),
        (["--wait", "0"], "--wait 0: give a number above 0"),
        (["--seconds", "-1"], "--seconds -1: give a number from 0 on"),
        (["--compute-seconds", "3"], "need --parameters or --model"),
        (["--parameters", "1e9", "--model", "m"], "give one of them"),
        (["--model", "./no-such-model"], "--model ./no-such-model: path does not exist"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = doctor(*arguments)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if not line.startswith("doctor: ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert done.stdout == ""


def test_one_process_prints_one_json_object(tmp_path: Path) -> None:
    done = doctor("--json", "--output_dir", str(tmp_path / "run"), TOOLKIT_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["faults"] == 0
    assert [f["rank"] for f in found["facts"]] == [0]
    assert found["facts"][0]["versions"]["python"] == sys.version.split()[0]
    assert {one["name"].split(".")[0] for one in found["findings"]} == {
        "versions",
        "devices",
        "host",
        "storage",
        "network",
    }
    assert found["collectives"] == []
    assert not list(tmp_path.rglob(".doctor-*"))


def test_a_folder_that_cannot_be_written_ends_in_exit_code_1_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = doctor("--output_dir", str(tmp_path / "file" / "run"))
    assert done.returncode == 1
    assert "fault storage.output_writable" in done.stdout
    assert "give --output_dir a folder" in done.stdout


def test_a_layout_is_a_name_or_a_path_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_layout("fsdp2") == ROOT / "accelerate_configs" / "fsdp2.yaml"
    (tmp_path / "mine.yaml").write_text("num_processes: 3")
    assert find_layout("mine.yaml") == Path("mine.yaml")
    with pytest.raises(UserError, match=r"there are: ddp, .*single"):
        find_layout("zzz")


def test_every_option_reaches_the_launched_processes() -> None:
    from toolkit.doctor.options import add_options, read_options

    given = Options(
        json=False, output_dir="-odd name", wait=7.0, seconds=3.0, parameters=8e9, model=None, micro_batches=2,
        tokens=4096.0, compute_seconds=None,
    )  # fmt: skip
    line = command(find_layout("ddp"), 2, given, Path("w.json"), lambda: 0).arguments
    after = line[next(i for i, part in enumerate(line) if part.endswith("__main__.py")) + 1 :]
    import argparse

    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.add_argument("--write")
    arguments = parser.parse_args(after)
    assert read_options(arguments) == given
    assert arguments.write == "w.json"
