"""What schedulers say, with their variables written out by hand; what is there by half is an error, never a guess."""

from __future__ import annotations

import pytest

from toolkit.cluster.allocation import Allocation, read_allocation
from toolkit.errors import UserError

SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "16", "SLURM_JOB_NODELIST": "gpu[01-16]", "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "16", "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_NODELIST": "gpu[01-16]", "SLURM_NODEID": "3",
    "SLURM_GPUS_ON_NODE": "8",
}  # fmt: skip
JOB = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "8",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "job-0",
    "PET_MASTER_PORT": "23456",
}


def head_of(nodes: str) -> str:
    assert nodes == "gpu[01-16]"
    return "10.0.0.1"


def without(environment: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in names}


def test_no_scheduler_is_this_machine() -> None:
    assert read_allocation({"PATH": "/bin"}) == Allocation("this machine")


def test_a_slurm_step_of_16_nodes_with_8_devices() -> None:
    # 20000 + 4711
    assert read_allocation(SLURM, head_of) == Allocation("SLURM job 4711", 16, 3, 8, "10.0.0.1", 24711, "4711")
    later = read_allocation({**SLURM, "SLURM_STEP_ID": "1"}, head_of)
    assert later.port != 24711
    assert 20_000 <= later.port < 40_000
    high = read_allocation({**SLURM, "SLURM_JOB_ID": "39999999"}, head_of)
    assert 20_000 <= high.port < 40_000


@pytest.mark.parametrize(
    ("variables", "devices"),
    [
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "a100:8"}, 8),
        ({"SLURM_GPUS_PER_NODE": "a100:4,v100:2"}, 6),
        ({"SLURM_GPUS_ON_NODE": "0"}, None),
        ({}, None),
    ],
)
def test_devices_of_a_slurm_node(variables: dict[str, str], devices: int | None) -> None:
    assert read_allocation({**without(SLURM, "SLURM_GPUS_ON_NODE"), **variables}, head_of).devices_per_node == devices


def test_a_batch_script_of_one_node_needs_no_srun_and_one_of_several_does() -> None:
    batch = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "8"}
    assert read_allocation(batch) == Allocation("SLURM job 7", devices_per_node=8, job="7")
    with pytest.raises(UserError, match=r"SLURM job 7 has 4 nodes.*srun --nodes=4 --ntasks-per-node=1 toolkit launch"):
        read_allocation({**batch, "SLURM_JOB_NUM_NODES": "4"})


def test_several_tasks_on_a_node_are_refused() -> None:
    with pytest.raises(UserError, match=r"step 4711\.0 has 128 tasks on 16 nodes.*--ntasks-per-node=1"):
        read_allocation({**SLURM, "SLURM_STEP_NUM_TASKS": "128"}, head_of)


def test_pytorchjob_torchrun_and_common_variables() -> None:
    wanted = Allocation("Kubernetes", 2, 1, 8, "job-0", 23456)
    assert read_allocation({**JOB, "KUBERNETES_SERVICE_HOST": "10.1.0.1"}) == wanted
    plain = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "job-0", "MASTER_PORT": "23456"}
    assert read_allocation(plain) == Allocation("the environment", 2, 1, None, "job-0", 23456)
    # PyTorchJob sets both kinds: of WORLD_SIZE processes on PET_NNODES nodes, the nodes count.
    both = {**JOB, "WORLD_SIZE": "16", "RANK": "1", "MASTER_ADDR": "job-0", "MASTER_PORT": "23456"}
    assert read_allocation(both) == Allocation("the environment", 2, 1, 8, "job-0", 23456)
    assert read_allocation({"PET_NNODES": "1", "PET_NPROC_PER_NODE": "auto"}) == Allocation("the environment")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (without(JOB, "PET_NODE_RANK"), "PET_NNODES is 2, but this node's number is missing: set one of PET_NODE_RANK"),
        (without(JOB, "PET_MASTER_ADDR"), "the address of the first node is missing"),
        (without(JOB, "PET_MASTER_PORT"), "a port there is missing: set one of PET_MASTER_PORT, MASTER_PORT"),
        ({"MASTER_ADDR": "10.0.0.1"}, "MASTER_ADDR is set, but not on how many nodes"),
        ({**JOB, "PET_NNODES": "two"}, "PET_NNODES must be a whole number, got two"),
        ({**JOB, "PET_NODE_RANK": "2"}, "PET_NODE_RANK is 2, but PET_NNODES is 2: nodes are counted from 0"),
        ({**JOB, "LOCAL_RANK": "0"}, "started by a launcher itself"),
        (without(SLURM, "SLURM_NODEID"), "16 nodes, but SLURM_NODEID is not set"),
        (without(SLURM, "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"), "SLURM_JOB_NODELIST is not set"),
    ],
)
def test_what_is_there_by_half_names_what_is_missing(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        read_allocation(environment, head_of)
    assert "\n" not in str(refused.value)
