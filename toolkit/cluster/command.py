"""The `accelerate launch` command of a layout on the machines at hand, and how each of its numbers was found."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from toolkit.cluster.allocation import Allocation
from toolkit.errors import UserError

_SIZES = ("dp_replicate", "dp_shard", "tp", "cp")


@dataclass(frozen=True)
class Command:
    """What starts the processes of one node.

    script: what each process runs. arguments: those of `accelerate launch`, with the script and its own. environment:
    variables to add. derived: a line for each number that no file states.
    """

    script: Path
    arguments: list[str]
    environment: dict[str, str]
    derived: list[str]

    @property
    def argv(self) -> list[str]:
        """To be started."""
        return [sys.executable, "-m", "accelerate.commands.launch", *self.arguments]

    @property
    def text(self) -> str:
        """To be read, and copied to a terminal."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        return " ".join([*variables, "accelerate launch", shlex.join(self.arguments)])


def find_layout(name: str) -> Path:
    """A path, or a name in accelerate_configs/ here or beside the toolkit. Raises UserError with the names there are."""
    given = Path(name).expanduser()
    folders = [Path("accelerate_configs"), Path(__file__).parents[2] / "accelerate_configs"]
    for candidate in (given, *(folder / f"{name}.yaml" for folder in folders), *(folder / name for folder in folders)):
        if candidate.is_file():
            return candidate
    known = sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})
    near = difflib.get_close_matches(given.stem, known, n=1)
    hint = f", did you mean {near[0]}?" if near else ""
    there = f" (there are: {', '.join(known)})" if known else "; run this in the repository, or give the path of a file"
    raise UserError(f"--layout {name}: no such layout{hint}{there}")


def find_script(name: str) -> Path:
    """A recipe by its name (`sft`) or path. Raises UserError with the names there are."""
    for candidate in (Path(name), Path("recipes") / f"{name}.py"):
        if candidate.is_file():
            return candidate
    names = ", ".join(sorted(file.stem for file in Path("recipes").glob("*.py")))
    raise UserError(f"{name}: there is no such recipe; there are: {names or 'none, run this in the repository'}")


def recipe_flags(verb: str, rest: list[str]) -> list[str]:
    """What follows `--`. Raises UserError for a flag before it that `verb` does not know."""
    if rest and rest[0] != "--":
        raise UserError(
            f"{rest[0]} is not a flag of toolkit {verb}; flags of the recipe come after --: -- {shlex.join(rest)}"
        )
    return rest[1:]


def build_command(
    layout: Path,
    script: Path,
    arguments: Sequence[str],
    allocation: Allocation,
    *,
    num_processes: int | None,
    devices_here: Callable[[], int],
    interface_to: Callable[[str], str | None] = lambda head: None,
) -> Command:
    """The command for this node of `allocation`.

    num_processes: of the whole run, None derives it. devices_here: counts this machine's accelerators. interface_to: name
    of the network interface that leads to an address. Raises UserError for sizes that do not fit together.
    """
    settings = read_layout(layout)
    derived: list[str] = []
    total = _processes(settings, layout, allocation, num_processes, devices_here, derived)
    _refuse_too_many(layout, total // allocation.nodes, allocation.devices_per_node or devices_here())
    flags = ["--config_file", str(layout), "--num_processes", str(total), "--num_machines", str(allocation.nodes)]
    environment: dict[str, str] = {}
    if allocation.nodes > 1:
        assert allocation.head is not None
        assert allocation.port is not None
        flags += ["--machine_rank", str(allocation.node_rank), "--main_process_ip", allocation.head]
        flags += ["--main_process_port", str(allocation.port)]
        if allocation.job is not None:
            environment["PET_RDZV_ID"] = allocation.job
        derived.append(
            f"node {allocation.node_rank} of {allocation.nodes}, which meet at {allocation.head}:{allocation.port} "
            f"({allocation.scheduler})"
        )
        interface = interface_to(allocation.head)
        if interface is not None:
            # A host name that resolves to the loopback address would be told to the other nodes otherwise.
            environment["GLOO_SOCKET_IFNAME"] = interface
            derived.append(f"gloo talks through {interface}, which leads to {allocation.head}")
    else:
        flags += ["--main_process_port", "0"]
    flags += _sizes(settings, layout, allocation.nodes, total, derived)
    return Command(script, [*flags, str(script), *arguments], environment, derived)


def read_layout(layout: Path) -> dict[str, Any]:
    """The settings of an accelerate config file. Raises UserError if it is none."""
    try:
        settings = yaml.safe_load(layout.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{layout}: cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict) or "distributed_type" not in settings:
        raise UserError(f"{layout}: it is not an accelerate config, it has no distributed_type")
    return settings


def _processes(
    settings: dict[str, Any],
    layout: Path,
    allocation: Allocation,
    asked: int | None,
    devices_here: Callable[[], int],
    derived: list[str],
) -> int:
    nodes = allocation.nodes
    if str(settings["distributed_type"]).upper() == "NO":
        if nodes > 1 or (asked or 1) > 1:
            raise UserError(f"{layout} is for one process; with {max(nodes, asked or 1)} choose another, such as ddp")
        return 1
    if asked is not None:
        if asked < 1:
            raise UserError(f"--num_processes: must be at least 1, got {asked}")
        if asked % nodes:
            raise UserError(f"--num_processes {asked} cannot be shared by {nodes} nodes; give a multiple")
        return asked
    if allocation.devices_per_node:
        per_node, why = allocation.devices_per_node, f"devices per node ({allocation.scheduler})"
    elif devices_here():
        per_node, why = devices_here(), "accelerators of this machine"
    else:
        per_node = max(1, whole(settings, layout, "num_processes") // whole(settings, layout, "num_machines"))
        why = f"processes of {layout.name}; there is no accelerator"
    if nodes > 1:
        derived.append(f"num_processes {nodes * per_node} = {nodes} nodes x {per_node} {why}")
    else:
        derived.append(f"num_processes {per_node} = {why}")
    return nodes * per_node


def whole(section: dict[str, Any], layout: Path, key: str) -> int:
    """A number of a layout file, 1 where it is not there. Raises UserError for what is none."""
    value = section.get(key)
    if value is not None and not (str(value).isdigit() and int(value)):
        raise UserError(f"{layout}: {key} must be a whole number of at least 1, got {value}")
    return int(value or 1)


def _refuse_too_many(layout: Path, per_node: int, devices: int) -> None:
    if devices and per_node > devices:
        raise UserError(
            f"{layout}: {per_node} processes on a machine with {devices} accelerators; ask for at most as many, or hide them "
            "(CUDA_VISIBLE_DEVICES=) to run on CPU processes"
        )


def _sizes(settings: dict[str, Any], layout: Path, nodes: int, total: int, derived: list[str]) -> list[str]:
    """Flags for the sizes of a device mesh, where the layout has one and it is another here."""
    section = settings.get("parallelism_config") or {}
    given = {name: whole(section, layout, f"parallelism_config_{name}_size") for name in _SIZES}
    if set(given.values()) == {1}:
        return []
    per_node, inner = total // nodes, given["tp"] * given["cp"]
    if per_node % inner:
        kind = "tp_size" if given["tp"] > 1 else "cp_size"
        raise UserError(
            f"{layout}: {kind} {inner} does not divide the {per_node} processes of a node, and such a group must stay inside "
            "one; change it, or --num_processes"
        )
    sizes = dict(given)
    if given["dp_replicate"] > 1:
        sizes["dp_replicate"] = nodes if nodes > 1 else given["dp_replicate"]
    if total % (sizes["dp_replicate"] * inner):
        raise UserError(
            f"{layout}: {total} processes cannot be cut into {sizes['dp_replicate']} replicas"
            + (f" of groups of {inner}" if inner > 1 else "")
            + "; change the sizes, or --num_processes"
        )
    sizes["dp_shard"] = total // (sizes["dp_replicate"] * inner)
    flags = []
    for name, size in sizes.items():
        if size != given[name]:
            why = "nodes" if name == "dp_replicate" else "the processes that are left for it"
            derived.append(f"parallelism_config_{name}_size {size} = {why} ({given[name]} in {layout.name})")
            flags += [f"--parallelism_config_{name}_size", str(size)]
    return flags
