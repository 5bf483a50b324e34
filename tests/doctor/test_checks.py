"""Every check on made-up facts: well, odd and broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.doctor.made import GIB, H100, NETWORK, VERSIONS, change, rank, ranks
from toolkit.doctor import devices, host, network, storage, versions
from toolkit.doctor.probes import Folder, Hub


def test_a_healthy_cluster_has_nothing_but_good_findings() -> None:
    for made in (ranks(4, per_node=2), ranks(4, per_node=2, gpus=2), ranks(1)):
        seen = {what: {one.rank: True for one in made} for what in ("cache", "output")}
        findings = versions.check_versions(made) + devices.check_devices(made, "bf16") + host.check_host(made)
        findings += storage.check_storage(made, seen, 1e9) + network.check_network(made)
        assert {one.level for one in findings} == {"ok"}
        assert len({one.name for one in findings}) == len(findings) > 15
        assert not any(one.remedy for one in findings)


@pytest.mark.parametrize(
    ("name", "level"), [("torch", "fault"), ("NCCL", "fault"), ("toolkit", "fault"), ("driver", "warning")]
)
def test_a_version_that_differs_is_named_with_rank_and_host(name: str, level: str) -> None:
    made = ranks(6, per_node=2)
    made[3] = replace(made[3], versions={**VERSIONS, name: "9.9"})
    found = versions.check_version(name, made)
    assert found.level == level
    assert found.what == f"{name} {VERSIONS[name]}, but 9.9 on rank 3 on host-b"
    assert found.remedy


def test_devices_that_torch_cannot_use_are_a_fault() -> None:
    found = devices.check_usable([rank(0, gpus=2), replace(rank(1, gpus=2), torch_devices=0)])
    assert found.level == "fault"
    assert "rank 1 on host-b" in found.what


def test_ranks_on_different_kinds_of_device_are_a_fault() -> None:
    found = devices.check_kind([rank(0, gpus=1), rank(1, gpus=1), rank(2)])
    assert (found.level, found.what) == ("fault", "every rank runs on cuda, but cpu on rank 2 on host-c")


def test_other_models_and_mixed_models_are_warnings() -> None:
    a100 = replace(H100, name="A100")
    other = devices.check_alike([rank(0, gpus=2), rank(1, gpus=2), replace(rank(2, gpus=2), gpus=[a100, a100])])
    assert other.level == "warning"
    assert other.what == "each node has 2 x H100 (80 GiB), but 2 x A100 (80 GiB) on rank 2 on host-c"
    assert devices.check_alike([replace(rank(0, gpus=2), gpus=[H100, a100])]).level == "warning"


def test_more_processes_than_devices_are_a_fault() -> None:
    assert devices.check_enough([rank(0, per_node=4, gpus=2)]).level == "fault"
    assert devices.check_enough([rank(0, per_node=1, gpus=2)]).what == "1 of 2 accelerators of a node are used"


@pytest.mark.parametrize("busy", [{"processes": 1}, {"memory_used": 2 * GIB}])
def test_a_busy_device_is_a_warning(busy: dict[str, int]) -> None:
    found = devices.check_idle([replace(rank(0, gpus=1), gpus=[replace(H100, **busy)])])
    assert found.level == "warning"
    assert "GPU 0 on host-a" in found.what


def test_busy_processors_are_a_warning() -> None:
    busy = change(rank(1), "machine", load=12.0)
    found = devices.check_cpu_idle([rank(0), busy])
    assert (found.level, found.what) == (
        "warning",
        "load 12.0 over five minutes on 16 usable threads (rank 1 on host-b)",
    )
    assert devices.check_cpu_idle([rank(0), change(rank(1), "machine", load=None)]).level == "ok"


def test_bf16_matters_only_to_a_layout_that_asks_for_it() -> None:
    old = [replace(rank(0, gpus=1), gpus=[replace(H100, capability="7.5")])]
    assert [devices.check_bf16(old, p).level for p in ("no", "bf16")] == ["ok", "warning"]
    cpu = [change(rank(0), "machine", cpu_bf16=False)]
    assert [devices.check_cpu_bf16(cpu, p).level for p in ("no", "bf16")] == ["ok", "warning"]


def test_links_that_differ_within_or_between_nodes_are_warnings() -> None:
    mixed = replace(rank(0, gpus=3), links={"0-1": "NV4", "0-2": "SYS", "1-2": "SYS"})
    assert devices.check_links([mixed]).what == "only some GPUs share NVLink: 0-1; the others meet over PCIe"
    pcie = replace(rank(1, gpus=2), links={"0-1": "PIX"})
    assert devices.check_links([pcie]).level == "ok"
    assert devices.check_links([rank(0, gpus=2), rank(2, gpus=2), pcie]).level == "warning"


def test_threads_beyond_the_cores_are_a_warning() -> None:
    nodes = [change(rank(0, per_node=2), "machine", usable_cores=4)]
    assert devices.check_threads({0: 2, 1: 2}, nodes).level == "ok"
    assert devices.check_threads({0: 3, 1: 3}, nodes).level == "warning"


def test_a_slow_rank_is_named() -> None:
    flops = {0: 1e12, 1: 0.6e12, 2: 1e12, 3: 0.95e12}
    found = devices.check_speed(flops, ranks(4), "fp32")
    assert found.level == "warning"
    assert "slowest: rank 1 on host-b" in found.what
    assert devices.check_speed({**flops, 1: 0.8e12}, ranks(4), "fp32").level == "ok"


@pytest.mark.parametrize(
    ("check", "changes", "gpus", "level"),
    [
        (host.check_shm, {"shm_free": 64 * 1024**2}, 2, "fault"),
        (host.check_shm, {"shm_free": 64 * 1024**2}, 0, "warning"),
        (host.check_shm, {"shm_free": GIB // 2}, 2, "warning"),
        (host.check_shm, {"shm_free": None}, 2, "ok"),
        (host.check_open_files, {"open_files": 1024}, 0, "warning"),
        (host.check_open_files, {"open_files": 256}, 0, "fault"),
        (host.check_open_files, {"open_files": -1}, 0, "ok"),
        (host.check_memory, {"memory_free": 6 * GIB}, 0, "warning"),
        (host.check_memory, {"memory_free": 3 * GIB, "memory": 4 * GIB}, 0, "warning"),  # two processes need 4
        (host.check_locked_memory, {"locked_memory": 65536}, 0, "ok"),  # without InfiniBand
    ],
)
def test_limits_of_a_host(check, changes, gpus, level) -> None:  # type: ignore[no-untyped-def]
    nodes = [rank(0, per_node=2, gpus=gpus), change(rank(2, per_node=2, gpus=gpus), "machine", **changes)]
    found = check(nodes)
    assert found.level == level
    assert ("on host-b" in found.what) == (level != "ok")


def test_of_several_nodes_the_worst_decides() -> None:
    limits = (65536, 1024, 256)
    nodes = [change(one, "machine", open_files=limit) for one, limit in zip(ranks(3), limits, strict=True)]
    found = host.check_open_files(nodes)
    assert (found.level, found.what) == ("fault", "256 open files a process (rank 2 on host-c)")


def test_infiniband_needs_locked_memory() -> None:
    one = change(change(rank(0), "machine", locked_memory=65536), "network", infiniband={"mlx5_0": "ACTIVE"})
    assert host.check_locked_memory([one]).level == "warning"


@pytest.mark.parametrize(
    ("ahead", "uncertain", "level"),
    [(0.5, 0.0, "ok"), (-1.5, 0.01, "warning"), (1.5, 0.9, "ok"), (-90.0, 0.01, "fault")],
)
def test_clock_skew_beyond_what_is_uncertain(ahead: float, uncertain: float, level: str) -> None:
    found = host.check_clock({1: (0.0, 0.0), 2: (ahead, uncertain)}, ranks(3))
    assert found.level == level
    assert "host-c" in found.what


def test_a_folder_that_cannot_be_written_is_a_fault_and_its_room_no_question() -> None:
    made = ranks(2)
    full = Folder("/data/out", "/data", "Permission denied", 0)
    made[1] = replace(made[1], folders={**made[1].folders, "output": full})
    found = {one.name: one for one in storage.check_storage(made, {"cache": {0: True, 1: True}, "output": {}}, None)}
    assert found["storage.output_writable"].what == "/data/out: Permission denied (rank 1 on host-b)"
    assert found["storage.output_writable"].level == "fault"
    assert found["storage.output_shared"].level == "warning"
    assert "storage.output_room" not in found
    assert found["storage.cache_shared"].level == "ok"


def test_an_output_folder_that_is_not_shared_is_a_fault_a_cache_a_warning() -> None:
    seen = {0: True, 1: False}
    output, cache = (storage.check_shared(what, ranks(2), seen) for what in ("output", "cache"))
    assert (output.level, cache.level) == ("fault", "warning")
    assert "not seen by rank 1 on host-b" in output.what
    # A rank that did not say whether it sees the file does not.
    assert storage.check_shared("output", ranks(3), {0: True, 1: True}).level == "fault"


def test_room_for_a_checkpoint_and_the_model() -> None:
    def free(gib: float) -> list:
        made = rank(0)
        folder = replace(made.folders["output"], free=int(gib * GIB))
        return [replace(made, folders={**made.folders, "output": folder}), rank(1)]

    # 16 bytes a parameter: 2^31 parameters need 32 GiB.
    assert storage.check_room("output", free(31), 2**31).level == "fault"
    assert storage.check_room("output", free(33), 2**31).level == "ok"
    assert [storage.check_room("output", free(gib), None).level for gib in (0.5, 5, 30)] == ["fault", "warning", "ok"]


def test_a_host_name_that_means_itself_is_a_fault_on_several_machines_with_gloo() -> None:
    def astray(number: int, **more) -> object:  # type: ignore[no-untyped-def]
        return change(rank(number, **more), "network", hostname_address="127.0.1.1")

    assert network.check_hostname([rank(0), astray(1)]).level == "fault"
    assert "rank 1 on host-b" in network.check_hostname([rank(0), astray(1)]).what
    assert network.check_hostname([rank(0, gpus=1), astray(1, gpus=1)]).level == "warning"
    one_machine = [change(astray(n), "machine", machine="same") for n in (0, 1)]  # type: ignore[arg-type]
    assert network.check_hostname(one_machine).level == "ok"
    named = [change(astray(n), "network", gloo="eth0") for n in (0, 1)]  # type: ignore[arg-type]
    assert network.check_hostname(named).level == "ok"
    nameless = [rank(0), change(rank(1), "network", hostname_address="")]
    assert network.check_hostname(nameless).level == "fault"


@pytest.mark.parametrize(
    ("setting", "chosen"),
    [
        ("", ["eth0", "ib0"]),
        ("eth", ["eth0"]),
        ("=eth", []),
        ("=ib0", ["ib0"]),
        ("^lo,eth", ["docker0", "ib0"]),
        ("eno", []),
    ],
)
def test_nccl_interface_names(setting: str, chosen: list[str]) -> None:
    addresses = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth0": "10.0.0.1", "ib0": "10.1.0.1"}
    one = change(rank(0, gpus=1), "network", addresses=addresses, nccl=setting)
    assert network.nccl_interfaces(one) == chosen
    one = replace(one, settings={"NCCL_SOCKET_IFNAME": setting} if setting else {})
    assert network.check_interface_names([one]).level == ("ok" if chosen else "fault")
    if setting and chosen:
        assert network.address_for_peers(one) == addresses[chosen[0]]


def test_gloo_interface_names() -> None:
    wrong = replace(change(rank(0), "network", gloo="eth7"), settings={"GLOO_SOCKET_IFNAME": "eth7"})
    found = network.check_interface_names([rank(1), wrong])
    assert found.level == "fault"
    assert "eth0, lo" in found.remedy
    assert network.address_for_peers(wrong) == "10.0.0.1"


def test_infiniband_that_is_down_or_missing_on_some_nodes() -> None:
    up = change(rank(0, gpus=1), "network", infiniband={"mlx5_0": "ACTIVE", "mlx5_1": "ACTIVE"})
    down = change(rank(1, gpus=1), "network", infiniband={"mlx5_0": "ACTIVE", "mlx5_1": "DOWN"})
    assert network.check_infiniband([up, down]).what == "port 1 of mlx5_1 is not active (rank 1 on host-b)"
    assert network.check_infiniband([up, rank(1, gpus=1)]).level == "warning"
    assert network.check_infiniband([up]).level == "ok"
    assert network.check_interface([up]).what == "traffic to other nodes would go by InfiniBand"


def test_nodes_that_do_not_reach_each_other() -> None:
    reached = {0: {1: ""}, 1: {0: "10.0.0.1:4000 timed out"}}
    found = network.check_reachable(ranks(2), reached)
    assert (found.level, found.what) == ("fault", "host-b to host-a: 10.0.0.1:4000 timed out")
    assert network.check_reachable(ranks(2), {0: {1: ""}, 1: {0: ""}}).level == "ok"
    assert network.check_reachable(ranks(2), {0: {1: ""}}).what == "host-b (node 1) did not report"


def test_the_hub() -> None:
    offline, mute = Hub("https://h", "HF_HUB_OFFLINE", ""), Hub("https://h", "", "timed out")

    def level(*hubs: Hub) -> str:
        return network.check_hub([replace(one, hub=hub) for one, hub in zip(ranks(len(hubs)), hubs, strict=True)]).level

    assert level(offline, offline) == "ok"
    assert level(Hub("https://h", "", ""), mute) == "warning"
    assert level(offline, Hub("https://h", "", "")) == "warning"


def test_made_facts_survive_the_way_to_the_main_process() -> None:
    import json

    one = replace(
        rank(3, gpus=2), settings={"NCCL_DEBUG": "INFO"}, network=replace(NETWORK, infiniband={"a": "ACTIVE"})
    )
    assert type(one).from_json(json.loads(json.dumps(one.to_json()))) == one
    without = replace(rank(1), hub=None)
    assert type(one).from_json(json.loads(json.dumps(without.to_json()))) == without
