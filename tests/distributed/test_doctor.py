"""The doctor in real processes: it measures what is there, and ends when somebody is missing or stuck."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.conftest import launch

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).parents[2]

# The doctor's measurement, then the same large messages timed plainly in the same processes.
MEASURED_TWICE = """
import statistics, time
import torch, torch.distributed as dist
from toolkit.doctor.collectives import measure
from toolkit.layout import build_layout
layout = build_layout()
found = {m.operation: m for m in measure("all", [0, 1], None, layout.device, 4.0)}
tensor = torch.ones(4 * 2**20)  # 16 MiB
parts = [torch.empty(2 * 2**20) for _ in range(2)]
plain = {"all_reduce": lambda: dist.all_reduce(tensor), "all_gather": lambda: dist.all_gather(parts, parts[0].clone())}
for operation, call in plain.items():
    times = []
    call()
    for _ in range(9):
        dist.barrier()
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    mine = next(t.seconds for t in found[operation].timings if t.bytes == 16 * 2**20)
    if layout.is_main:
        print("RATIO", operation, mine / statistics.median(times))
layout.wait()
dist.destroy_process_group()
"""

# Under the doctor, but on rank 1 the group never forms.
STUCK = """
import os, sys, time
if os.environ["RANK"] == "1":
    import toolkit.layout
    toolkit.layout.build_layout = lambda: time.sleep(600)
from toolkit.doctor.__main__ import main
main()
"""

# Each rank has a cache of its own, and a working directory of its own for the relative output folder.
APART = """
import os, sys
from pathlib import Path
own = Path(os.environ["APART"]) / os.environ["RANK"]
own.mkdir()
os.environ["TOOLKIT_CACHE"] = str(own / "cache")
os.chdir(own)
from toolkit.doctor.__main__ import main
main()
"""


def run(command: list[str], timeout: int = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=timeout, cwd=ROOT, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_a_group_of_two_is_checked_and_measured(tmp_path: Path) -> None:
    flags = [
        "--layout",
        "ddp",
        "--json",
        "--seconds",
        "3",
        "--parameters",
        "1e8",
        "--tokens-per-step-per-device",
        "512",
    ]
    done = run(
        ["-c", "from toolkit.cli import main; main()", "doctor", *flags, "--output_dir", str(tmp_path)],
        PYTHONPATH=str(ROOT),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["processes"] == 2
    assert found["nodes"][0]["ranks"] == [0, 1]
    measured = {(one["group"], one["operation"]): one for one in found["collectives"]}
    operations = ("all_reduce", "all_gather", "reduce_scatter")
    assert set(measured) == {(group, o) for group in ("inside a node", "all") for o in operations}
    for one in measured.values():
        assert one["sizes"][0]["bytes"] == 8192
        assert one["latency"] >= 0
    levels = {one["name"]: one["level"] for one in found["findings"]}
    assert "fault" not in levels.values()
    assert levels["group.formed"] == levels["storage.output_shared"] == levels["storage.cache_shared"] == "ok"
    assert "devices.speed" in levels
    # DDP sends 4 bytes a parameter once, times 2 x 1/2; FSDP2 three times 4 bytes, times 1/2.
    assert [one["link_bytes"] for one in found["step"]] == [4e8, 6e8]
    assert list(tmp_path.iterdir()) == []


def test_measured_times_agree_with_a_plain_timing(script) -> None:  # type: ignore[no-untyped-def]
    code, output = script(MEASURED_TWICE, "ddp")
    assert code == 0, output
    ratios = {line.split()[1]: float(line.split()[2]) for line in output.splitlines() if line.startswith("RATIO")}
    assert set(ratios) == {"all_reduce", "all_gather"}
    assert all(0.2 < ratio < 5 for ratio in ratios.values()), ratios


def test_two_nodes_reach_each_other_and_compare_clocks(tmp_path: Path) -> None:
    port = str(free_port())
    commands = [
        [
            *(sys.executable, "-m", "accelerate.commands.launch", "--config_file", "accelerate_configs/ddp.yaml"),
            *("--num_machines", "2", "--machine_rank", str(node), "--main_process_ip", "127.0.0.1"),
            *("--main_process_port", port, "--num_processes", "2", "-m", "toolkit.doctor"),
            *("--json", "--seconds", "2", "--output_dir", str(tmp_path)),
        ]
        for node in (0, 1)
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    nodes = [
        subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
        for c in commands
    ]
    try:
        outputs = [node.communicate(timeout=120) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert outputs[1][0] == ""  # only the main process prints
    found = json.loads(outputs[0][0])
    assert [one["ranks"] for one in found["nodes"]] == [[0], [1]]
    said = {one["name"]: (one["level"], one["what"]) for one in found["findings"]}
    assert said["network.reachable"] == ("ok", "2 nodes reach each other's free ports")
    assert said["host.clock"][0] == "ok"
    assert "clocks differ by" in said["host.clock"][1]
    assert {one["group"] for one in found["collectives"]} == {"across nodes", "all"}


def test_folders_that_are_not_shared_are_told(tmp_path: Path) -> None:
    wrapper = tmp_path / "apart.py"
    wrapper.write_text(APART)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APART", str(tmp_path))
        patch.setenv("PYTHONPATH", str(ROOT))
        code, output = launch(wrapper, ["--seconds", "0", "--output_dir", "run"], layout="ddp", timeout=120)
    assert code == 1
    assert "fault storage.output_shared: what the main process writes in" in output
    assert "is not seen by rank 1 on" in output
    assert "warning storage.cache_shared" in output
    assert "\n1 fault, " in output


def test_a_rank_that_does_not_come_ends_the_doctor_in_the_time_given() -> None:
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    place["MASTER_PORT"] = str(free_port())
    main = run(["-m", "toolkit.doctor", "--wait", "2"], timeout=60, RANK="0", **place)
    assert main.returncode == 1
    assert "fault group.complete: rank 1 did not come within 2 s" in main.stdout
    other = run(["-m", "toolkit.doctor", "--wait", "2"], timeout=60, RANK="1", **place)
    assert other.returncode == 1
    assert other.stdout == ""
    assert f"[rank 1] fault: 127.0.0.1:{place['MASTER_PORT']}" in other.stderr


def test_a_group_that_does_not_form_ends_with_what_is_known(script) -> None:  # type: ignore[no-untyped-def]
    text = STUCK.replace("main()", "sys.argv[1:] = ['--wait', '6']; main()")
    code, output = script(text, "ddp", timeout=100)
    assert code == 1
    assert "fault group.formed: forming a process group took longer than 6 s" in output
    assert "versions" in output
