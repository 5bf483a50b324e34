"""What `accelerate launch` was asked for: the command line of the launcher and the layout file it names.

accelerate passes a file's contents to the workers as environment variables and forgets the file; keys it does not know
inside `fsdp_config` and the like it drops without a word. The launcher is this process's parent, so its command line
says which file it was, and the file can be checked and kept with the run.
"""

from __future__ import annotations

import argparse
import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from toolkit.errors import UserError

# Sections of an accelerate config whose keys accelerate does not check itself.
_UNCHECKED_SECTIONS = {
    "fsdp_config": "fsdp_",
    "parallelism_config": "parallelism_config_",
    "dynamo_config": "dynamo_",
}
# Keys that accelerate passes over and the toolkit reads from the file. They stand in `parallelism_config`, the one section
# whose name fits every kind of layout. Accumulation is found where accelerate's own questionnaire puts it, too.
ACCUMULATION = "gradient_accumulation_steps"
COMM_HOOK = "ddp_comm_hook"
COMM_STATE = "ddp_comm_state_option"
_OWN_KEYS = {"parallelism_config": (ACCUMULATION, COMM_HOOK, COMM_STATE), "fsdp_config": (ACCUMULATION,)}


@dataclass(frozen=True)
class Launch:
    """How this process was started.

    command: the launcher's command line, empty when there is no launcher (`python recipes/sft.py`).
    config_file: the accelerate config that it read, if any.
    settings: that file's contents.
    user_chose_threads: the user set OMP_NUM_THREADS or --num_cpu_threads_per_process.
    """

    command: tuple[str, ...]
    config_file: Path | None
    settings: dict[str, Any]
    user_chose_threads: bool

    @property
    def requested_processes(self) -> int:
        """Processes that were asked for: the flag, else the file, else one."""
        return int(self.flag("num_processes") or self.settings.get("num_processes") or 1)

    def flag(self, name: str) -> str | None:
        """Value of a flag on the launcher's command line, None where it was not given."""
        return _flag(self.command, name)

    def given(self) -> dict[str, Any]:
        """The launcher's own flags that are not at their defaults, by their names without dashes."""
        found = _arguments(self.command)
        if found is None:
            return {}
        parser, values = found
        defaults = {action.dest: action.default for action in parser._actions}
        return {
            name: value
            for name, value in vars(values).items()
            if name in defaults and value != defaults[name] and not name.startswith("training_script")
        }


def read_launch() -> Launch:
    """Look at the parent process. Raises UserError for keys of the layout file that accelerate silently ignores."""
    command, environment, folder = _parent()
    named = _flag(command, "config_file")
    file = (folder / named) if named else _default_config_file()
    settings: dict[str, Any] = {}
    if command and file is not None and file.is_file():
        loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
        settings = loaded if isinstance(loaded, dict) else {}
    else:
        file = None
    if file is not None:
        _check_sections(file, settings)
    chose = "OMP_NUM_THREADS" in environment or _flag(command, "num_cpu_threads_per_process") is not None
    return Launch(tuple(command), file, settings, chose)


def settings_in_force() -> dict[str, str]:
    """The environment variables through which the launcher's decisions reach this process."""
    prefixes = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
    return {key: value for key, value in sorted(os.environ.items()) if key.startswith(prefixes)}


def _parent() -> tuple[list[str], dict[str, str], Path]:
    """Command line, environment and working directory of the launcher; of this process where there is no launcher."""
    nothing: list[str] = []
    try:
        parent = psutil.Process(os.getppid())
        command = parent.cmdline()
        if any(map(_is_launcher, command)):
            return command, parent.environ(), Path(parent.cwd())
    except (psutil.Error, OSError):
        pass
    return nothing, dict(os.environ), Path.cwd()


def _is_launcher(part: str) -> bool:
    return Path(part).name in ("accelerate", "accelerate-launch") or "accelerate.commands" in part


def _default_config_file() -> Path | None:
    from accelerate.commands.config.config_args import default_config_file

    return Path(default_config_file)


def _flag(command: tuple[str, ...] | list[str], name: str) -> str | None:
    """Value of a flag of the launcher's own, None without a launcher."""
    found = _arguments(command)
    value = None if found is None else getattr(found[1], name)
    return None if value is None else str(value)


def _arguments(command: tuple[str, ...] | list[str]) -> tuple[argparse.ArgumentParser, argparse.Namespace] | None:
    """accelerate's parser and what it reads in the launcher's command line: the flags of the script do not count."""
    start = next((index + 1 for index, part in enumerate(command) if _is_launcher(part)), None)
    if start is None:
        return None
    from accelerate.commands.launch import launch_command_parser

    arguments = [*command[start:]]
    if arguments[:1] == ["launch"]:
        del arguments[0]
    parser = launch_command_parser()
    return parser, parser.parse_known_args(arguments)[0]


def _check_sections(file: Path, settings: dict[str, Any]) -> None:
    from accelerate.commands.launch import launch_command_parser

    known = {action.dest for action in launch_command_parser()._actions}
    for section, prefix in _UNCHECKED_SECTIONS.items():
        own = _OWN_KEYS.get(section, ())
        allowed = sorted([*(name for name in known if name.startswith(prefix)), *own])
        for key in settings.get(section) or {}:
            # accelerate lets some sections leave the prefix out.
            spelled = key if key.startswith(prefix) or key in own else prefix + key
            if spelled not in allowed:
                near = difflib.get_close_matches(key, allowed, n=1) or difflib.get_close_matches(spelled, allowed, n=1)
                hint = f", did you mean {near[0]}?" if near else f"; known: {', '.join(allowed)}"
                raise UserError(f"{file}: unknown key {key} in {section}, accelerate would ignore it{hint}")
