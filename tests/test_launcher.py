"""What accelerate would drop without a word is found in the layout file and on the launcher's command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from toolkit.errors import UserError
from toolkit.launcher import Launch, _check_sections, _flag

REPORT = """
import json
from toolkit.errors import UserError
from toolkit.launcher import read_launch
try:
    launch = read_launch()
    processes = launch.requested_processes
    print(json.dumps([str(launch.config_file), launch.user_chose_threads, processes, bool(launch.command)]))
except UserError as error:
    print(json.dumps(str(error)))
"""
SINGLE = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "num_machines": 1, "num_processes": 1}


@pytest.mark.parametrize(
    ("section", "key", "nearest"),
    [
        ("fsdp_config", "fsdp_reshard_after_foward", "fsdp_reshard_after_forward"),
        ("fsdp_config", "state_dict_typ", "fsdp_state_dict_type"),
        ("parallelism_config", "parallelism_config_dp_shard_siz", "parallelism_config_dp_shard_size"),
        ("parallelism_config", "gradient_acumulation_steps", "gradient_accumulation_steps"),
        ("parallelism_config", "ddp_comm_hok", "ddp_comm_hook"),
        ("dynamo_config", "dynamo_backnd", "dynamo_backend"),
    ],
)
def test_a_typo_in_a_section_is_found(section: str, key: str, nearest: str) -> None:
    with pytest.raises(UserError, match=rf"l\.yaml: unknown key {key} in {section}.*did you mean {nearest}\?"):
        _check_sections(Path("l.yaml"), {section: {key: 1}})


def test_right_keys_pass_with_and_without_prefix() -> None:
    _check_sections(Path("l.yaml"), {"fsdp_config": {"fsdp_version": 2, "reshard_after_forward": True}})
    _check_sections(Path("l.yaml"), {"fsdp_config": None, "num_processes": 2})


@pytest.mark.parametrize(
    "start", [["accelerate", "launch"], ["accelerate-launch"], ["-m", "accelerate.commands.launch"]]
)
@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--num_processes", "2", "sft.py"], "2"),
        (["--num_processes=2", "sft.py"], "2"),
        (["--num-processes", "2", "sft.py"], "2"),
        (["--cpu", "--num_processes", "2", "a/sft.py", "--num_processes", "3"], "2"),
        (["sft.py", "--num_processes", "3"], None),
        (["--cpu", "sft.py", "--num_processes", "3"], None),
        (["--main_process_port=1", "sft.py", "--num_processes=3"], None),
        (["-m", "recipes.sft", "--num_processes", "3"], None),
    ],
)
def test_only_the_launchers_own_flags_count(start: list[str], arguments: list[str], value: str | None) -> None:
    assert _flag(["python", *start, *arguments], "num_processes") == value


def test_processes_that_were_asked_for() -> None:
    assert Launch((), None, {}, False).requested_processes == 1
    assert Launch(("accelerate", "launch", "a.py"), None, {"num_processes": 3}, False).requested_processes == 3
    command = ("accelerate", "launch", "--num_processes", "2", "a.py")
    assert Launch(command, None, {"num_processes": 3}, False).requested_processes == 2


def launch(folder: Path, *flags: str, settings: dict | None = None, **environment: str):
    (folder / "report.py").write_text(REPORT)
    (folder / "layout.yaml").write_text(yaml.safe_dump(settings or SINGLE))
    kept = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS" and not k.startswith("ACCELERATE_")}
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "layout.yaml", *flags, "report.py"],
        cwd=folder,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_the_file_that_the_launcher_read_is_found(tmp_path: Path) -> None:
    assert launch(tmp_path) == [str(tmp_path / "layout.yaml"), False, 1, True]


def test_the_user_chose_the_threads(tmp_path: Path) -> None:
    assert launch(tmp_path, OMP_NUM_THREADS="2")[1] is True


def test_a_running_process_sees_the_typo(tmp_path: Path) -> None:
    said = launch(tmp_path, settings={**SINGLE, "fsdp_config": {"fsdp_verson": 2}})
    assert "did you mean fsdp_version?" in said


def test_without_a_launcher_there_is_no_layout_file(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", REPORT], capture_output=True, text=True, check=True, cwd=tmp_path)
    config_file, _, processes, launched = json.loads(done.stdout)
    assert (config_file, processes, launched) == ("None", 1, False)
