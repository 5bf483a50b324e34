"""What nvidia-smi prints, in the forms it does."""

from __future__ import annotations

import sys
import time

from toolkit.doctor.nvidia import choose, command_output, parse_gpus, parse_topology

DEVICES = """0, GPU-aaa, NVIDIA H100 80GB HBM3, 570.86.15, 81559, 4, 9.0
1, GPU-bbb, NVIDIA H100 80GB HBM3, 570.86.15, 81559, 70123, 9.0
2, GPU-ccc, NVIDIA H100 80GB HBM3, 570.86.15, [N/A], [N/A], 9.0
No devices were found
"""
TOPOLOGY = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tSYS\tPIX\t0-63\t0\t\tN/A
GPU1\tNV12\t X \tPHB\tSYS\t0-63\t0\t\tN/A
GPU2\tSYS\tPHB\t X \tSYS\t0-63\t1\t\tN/A
NIC0\tPIX\tSYS\tSYS\t X 

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def test_devices_with_their_memory_and_their_users() -> None:
    gpus = parse_gpus(DEVICES, "GPU-bbb, 4711\nGPU-bbb, 4712\n")
    assert [(g.index, g.memory, g.memory_used, g.processes) for g in gpus] == [
        (0, 81559 * 1024**2, 4 * 1024**2, 0),
        (1, 81559 * 1024**2, 70123 * 1024**2, 2),
        (2, 0, 0, 0),
    ]
    assert (gpus[0].driver, gpus[0].capability) == ("570.86.15", "9.0")
    assert parse_gpus("", "") == []


def test_only_visible_devices_count_in_their_order() -> None:
    gpus = parse_gpus(DEVICES, "")
    for setting, expected in ((None, [0, 1, 2]), ("2,0", [2, 0]), ("GPU-b", [1]), ("", []), ("0,7,1", [0])):
        assert [g.index for g in choose(gpus, setting)] == expected


def test_links_between_devices_but_not_to_network_cards() -> None:
    assert parse_topology(TOPOLOGY) == {"0-1": "NV12", "0-2": "SYS", "1-2": "PHB"}
    assert parse_topology("") == {}


def test_a_command_that_is_missing_fails_or_hangs_says_nothing() -> None:
    assert command_output(["no-such-command-anywhere"]) == ""
    assert command_output([sys.executable, "-c", "print('half'); raise SystemExit(3)"]) == ""
    started = time.monotonic()
    assert command_output([sys.executable, "-c", "import time; time.sleep(60)"], seconds=0.5) == ""
    assert time.monotonic() - started < 30
    assert command_output([sys.executable, "-c", "print('all')"]) == "all\n"
