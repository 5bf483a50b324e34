"""What the scheduler has given: nodes, this node's number, devices, the address where processes meet. Read, never guessed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from toolkit.errors import UserError

# Of several spellings of a variable the first that is set counts: torchrun's own, the common ones, PyTorchJob's.
_NODES = ("PET_NNODES", "NNODES", "WORLD_SIZE")
_NODE_RANK = ("PET_NODE_RANK", "NODE_RANK", "GROUP_RANK", "RANK")
_ADDRESS = ("PET_MASTER_ADDR", "MASTER_ADDR")
_PORT = ("PET_MASTER_PORT", "MASTER_PORT")
_DEVICES = ("PET_NPROC_PER_NODE", "NPROC_PER_NODE")

_FIRST_PORT, _PORTS = 20_000, 20_000


@dataclass(frozen=True)
class Allocation:
    """The machines of a run.

    scheduler: who says so, in words. devices_per_node: None where it does not say. head, port: where the processes meet,
    None on one node. job: the scheduler's name of the job, None without one.
    """

    scheduler: str
    nodes: int = 1
    node_rank: int = 0
    devices_per_node: int | None = None
    head: str | None = None
    port: int | None = None
    job: str | None = None


def read_allocation(environment: Mapping[str, str], head_of: Callable[[str], str] | None = None) -> Allocation:
    """What the variables of SLURM, Kubernetes or torchrun say; this machine alone where there are none.

    head_of: address of the first node of a SLURM node list. Raises UserError for variables that are there by half, and
    where this is not the one start per node that is needed.
    """
    if "LOCAL_RANK" in environment:
        raise UserError(
            "toolkit launch was started by a launcher itself (LOCAL_RANK is set); start it once per node, or start the "
            "recipe directly"
        )
    if "SLURM_JOB_ID" in environment:
        return _slurm(environment, head_of or _slurm_head)
    if _first(environment, _NODES) or _first(environment, _ADDRESS):
        return _variables(environment)
    return Allocation("this machine")


def _slurm(environment: Mapping[str, str], head_of: Callable[[str], str]) -> Allocation:
    job = environment["SLURM_JOB_ID"]
    devices = _slurm_devices(environment)
    if "SLURM_STEP_ID" not in environment:
        nodes = int(environment.get("SLURM_JOB_NUM_NODES", environment.get("SLURM_NNODES", "1")))
        if nodes > 1:
            raise UserError(
                f"SLURM job {job} has {nodes} nodes, but this is a process on the first alone; start one on each, with "
                f"srun --nodes={nodes} --ntasks-per-node=1 toolkit launch ..., or let toolkit launch --slurm FILE write "
                "the script"
            )
        return Allocation(f"SLURM job {job}", devices_per_node=devices, job=job)
    nodes, tasks = (int(environment.get(f"SLURM_STEP_NUM_{what}", "1")) for what in ("NODES", "TASKS"))
    if tasks != nodes:
        raise UserError(
            f"SLURM step {job}.{environment['SLURM_STEP_ID']} has {tasks} tasks on {nodes} nodes; one per node starts the "
            "processes of its node: srun --ntasks-per-node=1"
        )
    if nodes == 1:
        return Allocation(f"SLURM job {job}", devices_per_node=devices, job=job)
    node_list = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    if not node_list or "SLURM_NODEID" not in environment:
        missing = "SLURM_NODEID" if node_list else "SLURM_JOB_NODELIST"
        raise UserError(f"SLURM job {job} has {nodes} nodes, but {missing} is not set; start with srun")
    # The same on every node, and another one for a later step of the same job.
    step = int(environment["SLURM_STEP_ID"]) if environment["SLURM_STEP_ID"].isdigit() else 0
    port = _FIRST_PORT + (int(job) + 7919 * step) % _PORTS
    return Allocation(
        f"SLURM job {job}", nodes, int(environment["SLURM_NODEID"]), devices, head_of(node_list), port, job
    )


def _slurm_devices(environment: Mapping[str, str]) -> int | None:
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        # "8", "a100:8", "a100:4,v100:4"
        counts = [part.rsplit(":", 1)[-1] for part in environment.get(name, "").split(",")]
        if all(count.isdigit() for count in counts):
            return sum(map(int, counts)) or None
    return None


def _slurm_head(node_list: str) -> str:
    """Address of the first node of a list such as node[01-16]. Node names may be aliases that no resolver knows."""
    first = _scontrol("show", "hostnames", node_list).split()[0]
    facts = _scontrol("show", "node", first).split()
    return next((fact.removeprefix("NodeAddr=") for fact in facts if fact.startswith("NodeAddr=")), first)


def _scontrol(*arguments: str) -> str:
    try:
        return subprocess.run(["scontrol", *arguments], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise UserError(
            f"scontrol {' '.join(arguments)} failed, so the head node is not known: {' '.join(said.split())[:200]}"
        ) from None


def _variables(environment: Mapping[str, str]) -> Allocation:
    """PyTorchJob's and torchrun's variables, as they stand in the environment of the one start per node."""
    kubernetes = "KUBERNETES_SERVICE_HOST" in environment
    where = "Kubernetes" if kubernetes else "the environment"
    count, address = _first(environment, _NODES), _first(environment, _ADDRESS)
    devices = _first(environment, _DEVICES)
    per_node = int(devices[1]) if devices and devices[1].isdigit() else None
    if count is None:
        raise UserError(
            f"{address[0] if address else _ADDRESS[-1]} is set, but not on how many nodes this runs: set one of "
            f"{', '.join(_NODES)}, or unset it to run on this machine alone"
        )
    nodes = _whole(count)
    if nodes == 1:
        return Allocation(where, devices_per_node=per_node)
    rank, port = _first(environment, _NODE_RANK), _first(environment, _PORT)
    for found, names, what in (
        (rank, _NODE_RANK, "this node's number"),
        (address, _ADDRESS, "the address of the first node"),
        (port, _PORT, "a port there"),
    ):
        if found is None:
            raise UserError(f"{count[0]} is {nodes}, but {what} is missing: set one of {', '.join(names)}")
    assert rank is not None and address is not None and port is not None  # noqa: PT018
    node_rank = _whole(rank)
    if node_rank >= nodes:
        raise UserError(f"{rank[0]} is {node_rank}, but {count[0]} is {nodes}: nodes are counted from 0")
    return Allocation(where, nodes, node_rank, per_node, address[1], _whole(port))


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str] | None:
    return next(((name, environment[name]) for name in names if environment.get(name)), None)


def _whole(variable: tuple[str, str]) -> int:
    if not variable[1].isdigit():
        raise UserError(f"{variable[0]} must be a whole number, got {variable[1]}")
    return int(variable[1])
