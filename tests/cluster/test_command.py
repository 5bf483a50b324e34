"""One layout file on one device, on eight, and on sixteen nodes of eight: the numbers that are derived, and the refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.cluster.allocation import Allocation
from toolkit.cluster.command import Command, build_command, find_layout, find_script
from toolkit.errors import UserError

CONFIGS = Path(__file__).parents[2] / "accelerate_configs"
HERE = Allocation("this machine")
NODE = Allocation("this machine", devices_per_node=8)
CLUSTER = Allocation("SLURM job 9", 16, 3, 8, "10.0.0.1", 20009, "9")


def command(layout: str, allocation: Allocation, *, processes: int | None = None, devices: int = 0) -> Command:
    return build_command(
        CONFIGS / f"{layout}.yaml", Path("r.py"), ["--a", "b c"], allocation, num_processes=processes,
        devices_here=lambda: devices, interface_to=lambda head: "eth7",
    )  # fmt: skip


def flags(built: Command) -> dict[str, str]:
    """Flags of the launcher, before the script."""
    own = built.arguments[: built.arguments.index("r.py")]
    return dict(zip(own[::2], own[1::2], strict=True))


def sizes(built: Command) -> dict[str, int]:
    prefix = "--parallelism_config_"
    return {
        k.removeprefix(prefix).removesuffix("_size"): int(v) for k, v in flags(built).items() if k.startswith(prefix)
    }


@pytest.mark.parametrize(
    ("allocation", "devices", "processes"), [(HERE, 0, 2), (HERE, 1, 1), (HERE, 8, 8), (CLUSTER, 0, 128)]
)
def test_one_process_per_device(allocation: Allocation, devices: int, processes: int) -> None:
    built = command("ddp", allocation, devices=devices)
    assert flags(built)["--num_processes"] == str(processes)
    assert any(line.startswith(f"num_processes {processes}") for line in built.derived)
    assert built.arguments[-3:] == ["r.py", "--a", "b c"]
    assert built.text.endswith("r.py --a 'b c'")


def test_a_number_that_was_asked_for_holds() -> None:
    assert flags(command("ddp", CLUSTER, processes=32))["--num_processes"] == "32"
    with pytest.raises(UserError, match="--num_processes 33 cannot be shared by 16 nodes"):
        command("ddp", CLUSTER, processes=33)


def test_where_nodes_meet_comes_from_the_scheduler() -> None:
    found = flags(command("ddp", CLUSTER))
    assert found["--num_machines"] == "16"
    assert found["--machine_rank"] == "3"
    assert (found["--main_process_ip"], found["--main_process_port"]) == ("10.0.0.1", "20009")
    assert command("ddp", CLUSTER).environment == {"PET_RDZV_ID": "9", "GLOO_SOCKET_IFNAME": "eth7"}
    assert "GLOO_SOCKET_IFNAME=eth7 PET_RDZV_ID=9 accelerate launch" in command("ddp", CLUSTER).text
    alone = command("ddp", HERE)
    assert flags(alone)["--main_process_port"] == "0"
    assert alone.environment == {}


@pytest.mark.parametrize(
    ("layout", "allocation", "processes", "expected"),
    [
        ("hsdp", HERE, 4, {}),  # 2 x 2 as in the file
        ("hsdp", NODE, None, {"dp_shard": 4}),  # one node: 2 replicas of 4
        ("hsdp", CLUSTER, None, {"dp_replicate": 16, "dp_shard": 8}),
        ("fsdp2_tp", HERE, 4, {}),
        ("fsdp2_tp", NODE, None, {"dp_shard": 4}),
        ("fsdp2_tp", CLUSTER, None, {"dp_shard": 64}),
        ("fsdp2_cp", HERE, 2, {"dp_shard": 1}),
        ("fsdp2", CLUSTER, None, {}),
    ],
)
def test_sizes_of_a_mesh_fit_the_machines(layout, allocation, processes, expected) -> None:
    built = command(layout, allocation, processes=processes)
    assert sizes(built) == expected
    for name, size in expected.items():
        assert any(line.startswith(f"parallelism_config_{name}_size {size}") for line in built.derived)


@pytest.mark.parametrize(
    ("layout", "allocation", "processes", "message"),
    [
        ("ddp", NODE, 9, "9 processes on a machine with 8 accelerators"),
        ("ddp", CLUSTER, 256, "16 processes on a machine with 8 accelerators"),
        ("ddp", HERE, 0, "--num_processes: must be at least 1"),
        ("single", CLUSTER, None, "is for one process; with 16"),
        ("single", HERE, 2, "is for one process; with 2"),
        ("hsdp", HERE, 5, "5 processes cannot be cut into 2 replicas"),
        ("fsdp2_tp", HERE, 3, "tp_size 2 does not divide the 3 processes of a node"),
        ("fsdp2_cp", CLUSTER, 16, "cp_size 2 does not divide the 1 processes of a node"),
    ],
)
def test_what_does_not_fit_is_one_line(layout, allocation, processes, message) -> None:
    with pytest.raises(UserError, match=message) as refused:
        command(layout, allocation, processes=processes)
    assert "\n" not in str(refused.value)


def test_names_that_are_not_there_list_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--layout dpp: no such layout, did you mean ddp\?.*there are: .*\bhsdp\b"):
        find_layout("dpp")
    with pytest.raises(UserError, match=r"stf: there is no such recipe; there are: .*\bsft\b"):
        find_script("stf")
    assert find_script("sft") == Path("recipes/sft.py")
    (tmp_path / "x.yaml").write_text("lr: 3\n")
    with pytest.raises(UserError, match="not an accelerate config"):
        build_command(tmp_path / "x.yaml", Path("r.py"), [], HERE, num_processes=None, devices_here=lambda: 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "distributed_type: MULTI_GPU\nnum_processes: many\n",
            "num_processes must be a whole number of at least 1, got many",
        ),
        (
            "distributed_type: FSDP\nparallelism_config: {parallelism_config_tp_size: two}\n",
            "parallelism_config_tp_size must be a whole number of at least 1, got two",
        ),
    ],
)
def test_numbers_of_a_file_are_numbers(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        build_command(tmp_path / "x.yaml", Path("r.py"), [], HERE, num_processes=None, devices_here=lambda: 0)
