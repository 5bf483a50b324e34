"""The command that a run can be repeated with, without what is only true of the machine it ran on."""

from __future__ import annotations

import shlex
from pathlib import Path

from toolkit.launcher import Launch

# Flags of the launcher that say how the work is spread, by the beginnings of their names. Addresses, ports and ranks of
# machines are left out.
_TOLD = ("num_processes", "num_machines", "mixed_precision", "cpu", "multi_gpu", "use_fsdp", "fsdp_", "parallelism_config_",
         "use_parallelism_config", "dynamo_")  # fmt: skip


def command_of(launch: Launch, script: str) -> str:
    """How to start `script` again as `launch` says, with the config that the card holds as config.yaml."""
    recipe = [file_of(script), "--config", "config.yaml"]
    if not launch.command:
        return shlex.join(["python", *recipe])
    flags: list[str] = []
    if launch.config_file is not None:
        named = launch.flag("config_file")
        flags += ["--config_file", file_of(named) if named else launch.config_file.name]
    for name, value in launch.given().items():
        if name.startswith(_TOLD) and value is not False:
            flags += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(["accelerate", "launch", *flags, *recipe])


def file_of(path: str) -> str:
    """A relative path as it is; of an absolute one the folder's and the file's name."""
    given = Path(path)
    return f"{given.parent.name}/{given.name}".lstrip("/") if given.is_absolute() else path
