"""From `--config FILE` and command-line overrides to a recipe's configuration; strict in both.

Parsing and typing are jsonargparse's. What it lacks is here: all unknown keys in one message with the nearest known ones,
duplicate keys, line numbers, bounds, and paths with `~` and variables. Nothing in this file loads torch, so that `--help`
and `--print_config` answer at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import sys
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml

from toolkit.errors import UserError

ConfigT = TypeVar("ConfigT")

# Keys that users of other tools look for, and where the thing lives here. Answers "unknown key" with a way on.
_ELSEWHERE = {
    "mixed_precision": "the layout owns it: mixed_precision in the accelerate config file",
    "bf16": "the layout owns it: mixed_precision: bf16 in the accelerate config file",
    "fp16": "the layout owns it: mixed_precision in the accelerate config file",
    "num_processes": "the layout owns it: num_processes in the accelerate config file",
    "gradient_accumulation_steps": "it is derived from train.global_batch_size and what one device holds",
    "per_device_train_batch_size": "use train.global_batch_size, and train.micro_batch_size for what one device holds",
    "num_train_epochs": "use train.epochs",
    "lr": "use train.learning_rate",
    "lr_scheduler_type": "use train.schedule",
    "max_seq_length": "use data.max_length",
    "packing": "rows are always laid end to end, isolated from each other; train.padding_free: false pads them",
}


def parse(config_class: type[ConfigT], argv: list[str] | None = None, *, demo: Path | None = None) -> ConfigT:
    """Build `config_class` from `--config FILE` and overrides such as `--train.learning_rate 1e-4`.

    demo: a YAML that is used when neither `--config` nor `--model.name_or_path` nor `--data.train` is given.
    Raises UserError for unknown or duplicate keys, wrong types, values out of bounds and undefined variables.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    files = _config_files(argv)
    if (
        demo is not None
        and not files
        and not any(_option_name(a) in ("model.name_or_path", "data.train") for a in argv)
    ):
        argv, files = ["--config", str(demo), *argv], [str(demo)]
    lines: dict[str, str] = {}
    unknown: list[str] = []
    for file in files:
        unknown += _check_yaml(config_class, file, lines)
    known = _all_keys(config_class)
    for name in filter(None, map(_option_name, argv)):
        if (
            name not in known
            and not name.startswith("data.columns.")
            and name not in ("config", "help", "print_config")
        ):
            unknown.append(_unknown_key(name, "the command line", known))
    if unknown:
        raise UserError("; ".join(unknown))
    config = _typed(config_class, argv, lines)
    _check_bounds(config, lines)
    _expand_paths(config, files)
    return config


def to_yaml(config: Any) -> str:
    """The resolved configuration as a YAML that `--config` reads back."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True)


def _option_name(argument: str) -> str | None:
    return argument[2:].split("=", 1)[0].removesuffix("+") if argument.startswith("--") and len(argument) > 2 else None


def _config_files(argv: list[str]) -> list[str]:
    files = [a.split("=", 1)[1] for a in argv if a.startswith("--config=")]
    files += [value for flag, value in zip(argv, argv[1:], strict=False) if flag == "--config"]
    if argv and argv[-1] == "--config":
        raise UserError("--config needs a file")
    for file in files:
        if not Path(file).is_file():
            raise UserError(f"--config {file}: no such file ({Path(file).absolute()})")
    return files


def _all_keys(config_class: type, prefix: str = "") -> list[str]:
    """Every key of a dataclass, nested ones dotted, sections included."""
    keys: list[str] = []
    for name, kind in typing.get_type_hints(config_class).items():
        keys.append(prefix + name)
        if dataclasses.is_dataclass(kind):
            keys += _all_keys(typing.cast(type, kind), f"{prefix}{name}.")
    return keys


def _unknown_key(key: str, where: str, known: list[str]) -> str:
    leaf = key.rsplit(".", 1)[-1]
    message = f"unknown key {key} ({where})"
    if leaf in _ELSEWHERE:
        return f"{message}: {_ELSEWHERE[leaf]}"
    near = [name for name in known if name.rsplit(".", 1)[-1] == leaf]
    by_leaf = {name.rsplit(".", 1)[-1]: name for name in known}
    near = near or difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    near = near or [by_leaf[match] for match in difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=0.6)]
    return f"{message}, did you mean {near[0]}?" if near else message


def _check_yaml(config_class: type, file: str, lines: dict[str, str]) -> list[str]:
    """Find unknown and duplicate keys of a YAML file; fill `lines` with `key -> "FILE line N"`. Returns messages."""
    try:
        root = yaml.compose(Path(file).read_text(encoding="utf-8-sig"), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from None
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{file}: a config is a mapping of sections, as in 'train:' and below it 'learning_rate: 1e-5'")
    known = _all_keys(config_class)
    messages: list[str] = []

    def walk(node: yaml.MappingNode, kind: type, prefix: str) -> None:
        hints = typing.get_type_hints(kind)
        for key_node, value in node.value:
            key, where = prefix + str(key_node.value), f"{file} line {key_node.start_mark.line + 1}"
            if key in lines and lines[key].startswith(f"{file} line"):
                messages.append(f"duplicate key {key} ({lines[key]} and line {key_node.start_mark.line + 1})")
            lines[key] = where
            if key_node.value not in hints:
                messages.append(_unknown_key(key, where, known))
            elif dataclasses.is_dataclass(hints[key_node.value]):
                if not isinstance(value, yaml.MappingNode):
                    raise UserError(f"{where}: {key} is a section; give its keys below it")
                walk(value, typing.cast(type, hints[key_node.value]), f"{key}.")
            elif (
                isinstance(value, yaml.ScalarNode) and value.style is None and re.fullmatch(r"\d+(:\d+)+", value.value)
            ):
                messages.append(f"{key}: YAML reads {value.value} as a base-60 number; put it in quotes ({where})")

    walk(root, config_class, "")
    return messages


def _typed(config_class: type[ConfigT], argv: list[str], lines: dict[str, str]) -> ConfigT:
    from jsonargparse import ArgumentError, ArgumentParser

    parser = ArgumentParser(exit_on_error=False, description=config_class.__doc__)
    parser.add_argument("--config", action="config", help="YAML file with any of the keys below")
    parser.add_class_arguments(config_class, nested_key=None)
    for action in parser._actions:
        text = _help_of(config_class, action.dest)
        if text:
            action.help = text
    try:
        values = parser.instantiate(parser.parse_args(argv))
        return config_class(**{item.name: values[item.name] for item in dataclasses.fields(config_class)})  # type: ignore[arg-type]
    except ArgumentError as error:
        text = " ".join(str(error).replace("<class '", "").replace("'>", "").split())
        found = re.search(r'[Kk]ey "([^"]+)":? (.*)', text)
        if not found:
            raise UserError(text) from None
        key, reason = found.groups()
        value = reason.rsplit("Got value: ", 1)[-1]
        pairs = zip(argv, [*argv[1:], ""], strict=True)
        typed_here = any(
            _option_name(flag) == key and value in (flag.split("=", 1)[-1], follows) for flag, follows in pairs
        )
        where = "the command line" if typed_here or key not in lines else lines[key]
        raise UserError(f"{key}: {reason} ({where})") from None


def _help_of(config_class: type, dotted: str) -> str | None:
    kind: Any = config_class
    *sections, leaf = dotted.split(".")
    for section in sections:
        kind = typing.get_type_hints(kind).get(section)
        if not dataclasses.is_dataclass(kind):
            return None
    return next((f.metadata.get("help") for f in dataclasses.fields(kind) if f.name == leaf), None)


def _fields(config: Any, prefix: str = "") -> typing.Iterator[tuple[str, Any, dataclasses.Field]]:
    """(dotted key, object that holds it, field) of every leaf."""
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            yield from _fields(value, f"{prefix}{item.name}.")
        else:
            yield prefix + item.name, config, item


def _check_bounds(config: Any, lines: dict[str, str]) -> None:
    for key, holder, item in _fields(config):
        value, minimum, above = getattr(holder, item.name), item.metadata.get("minimum"), item.metadata.get("above")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        where = f" ({lines[key]})" if key in lines else ""
        if not math.isfinite(value):
            raise UserError(f"{key}: expected a finite number, got {value}{where}")
        if minimum is not None and value < minimum:
            raise UserError(f"{key}: must be at least {minimum:g}, got {value:g}{where}")
        if above is not None and value <= above:
            raise UserError(f"{key}: must be above {above:g}, got {value:g}{where}")


def _expand_paths(config: Any, files: list[str]) -> None:
    """Expand `~`, `$VARIABLES` and `$CONFIG_DIR` (the folder of the YAML file) in path fields, in place."""
    known = dict(os.environ)
    if files:
        known["CONFIG_DIR"] = str(Path(files[-1]).absolute().parent)

    def expand(key: str, text: str) -> str:
        def variable(match: re.Match) -> str:
            name = match.group(1) or match.group(2)
            if name not in known:
                raise UserError(f"{key}: {text} names the variable ${name}, which is not defined")
            return known[name]

        text = re.sub(r"\$(?:(\w+)|\{(\w+)\})", variable, text)
        return str(Path(text).expanduser()) if text.startswith("~") else text

    for key, holder, item in _fields(config):
        value = getattr(holder, item.name)
        if not item.metadata.get("path") or value is None:
            continue
        expanded = [expand(key, v) for v in value] if isinstance(value, list) else expand(key, value)
        setattr(holder, item.name, expanded)
