"""What is refused before anything runs, and what is read from runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.cluster.command import Command
from toolkit.errors import UserError
from toolkit.parity.compare import FP32, Comparison
from toolkit.parity.report import bars
from toolkit.parity.run import check_flags, command_of, last_words, read_layouts

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_layouts_have_the_processes_of_their_file_or_those_after_the_colon() -> None:
    found = read_layouts("single, ddp:3,accelerate_configs/fsdp2_tp.yaml,ddp")
    assert [(one.name, one.processes) for one in found] == [("single", 1), ("ddp-3", 3), ("fsdp2_tp", 4), ("ddp", 2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("single", "at least two"),
        ("single,dpd", "there are: ddp, "),
        ("single,ddp:x", "whole number"),
        ("single,ddp:0", "whole number"),
        ("ddp:2,ddp:2", "ddp-2 is named twice"),
        ("ddp,single:2", "for one process"),
    ],
)
def test_layouts_that_cannot_be_are_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        read_layouts(text)
    assert "\n" not in str(error.value)


def test_more_processes_than_accelerators_are_refused_unless_cpus_are_asked_for(tmp_path: Path) -> None:
    _, four = read_layouts("single,fsdp2:4")

    def built(devices: int) -> Command:
        return command_of(four, Path("r.py"), [], tmp_path, 7, overwrite=False, devices=devices)

    assert built(4).arguments == built(0).arguments
    with pytest.raises(UserError, match=r"fsdp2\.yaml: 4 processes on a machine with 2 accelerators"):
        built(2)


@pytest.mark.parametrize(
    "flag", ["--train.max_steps", "--output_dir=x", "--generate_rows", "--checkpoint.save_every_minutes"]
)
def test_what_parity_sets_is_not_the_users(flag: str) -> None:
    with pytest.raises(UserError, match=f"^{flag.partition('=')[0]} is set by parity"):
        check_flags(["--seed", "3", flag, "5"])
    check_flags(["--seed", "3", "--train.learning_rate", "5"])


def test_sizes_are_derived_for_another_number_of_processes(tmp_path: Path) -> None:
    one, eight = read_layouts("hsdp,hsdp:8")
    built = command_of(
        eight, Path("recipes/sft.py"), ["--seed", "3"], tmp_path, 7, overwrite=False, devices=0
    ).arguments
    assert built[built.index("--parallelism_config_dp_shard_size") + 1] == "4"
    assert built[built.index("--train.max_steps") + 1] == "7"
    assert built[built.index("--output_dir") + 1] == str(tmp_path / "hsdp-8")
    assert (
        "--parallelism_config_dp_shard_size"
        not in command_of(one, Path("r.py"), [], tmp_path, 7, overwrite=False, devices=0).arguments
    )


def test_the_recipes_message_is_found_before_the_launchers_trace(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "loading\nerror: data.train: no such file\nTraceback (most recent call last):\nCalledProcessError: x\n"
    )
    assert last_words(log) == "error: data.train: no such file"
    log.write_text("\n".join(f"line {n}" for n in range(40)))
    assert last_words(log).splitlines()[0] == "line 25"


def test_the_highest_bar_is_over_the_bound() -> None:
    def plot(values: list[float]) -> str:
        return bars(Comparison(len(values), FP32, 0, 0, True, True, values, None))

    assert plot([0.0, 1e-5, 2e-5, float("nan")]) == "▁▇██"
    assert plot([0.0, 0.0, 1.0] + [0.0] * 77) == "▁█" + "▁" * 38, "the worst of two steps"


def parity(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from toolkit.cli import main; main()", "parity", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT, check=False)


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    for more, said in (((), "is not empty"), (("--overwrite",), "is not a comparison")):
        done = parity("sft", "--layouts", "single,ddp", "--output", str(tmp_path), *more)
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_flag_of_the_recipe_in_the_wrong_place_is_explained(tmp_path: Path) -> None:
    done = parity("sft", "--layouts", "single,ddp", "--output", str(tmp_path), "--seed", "3")
    assert (done.returncode, "come after --: -- --seed 3" in done.stderr) == (2, True)
