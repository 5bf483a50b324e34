"""From `--config FILE` and command-line overrides to a recipe's configuration; strict in both.

Parsing and typing are jsonargparse's. What it lacks is here: all unknown keys in one message with the nearest known
ones, duplicate keys, line numbers, bounds, and paths with `~` and variables. Nothing in this file loads torch, so that
`--help` and `--print_config` answer at once.
"""

from __future__ import annotations

import copy
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

from toolkit.config import RunConfig
from toolkit.errors import UserError

ConfigT = TypeVar("ConfigT")

_COMMAND_LINE = "the command line"
_BASE_60 = re.compile(r"\d+(:\d+)+")

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
    "save_steps": "use checkpoint.save_every",
    "save_total_limit": "use checkpoint.keep_last",
    "load_best_model_at_end": "use checkpoint.keep_best, then toolkit export",
    "resume_from_checkpoint": "use resume: auto, or resume: FOLDER",
    "eval_steps": "use eval_every",
    "logging_steps": "use log_every",
    "lr_scheduler_type": "use train.schedule",
    "max_seq_length": "use data.max_length",
    "packing": "rows are always laid end to end, isolated from each other; train.padding_free: false pads them",
}


def parse(config_class: type[ConfigT], argv: list[str] | None = None, *, demo: Path | None = None) -> ConfigT:
    """Build `config_class` from `--config FILE` and overrides such as `--train.learning_rate 1e-4`.

    demo: a YAML that is used when neither `--config` nor `--model.name_or_path` nor `--data.train` is given.
    Raises UserError for unknown or duplicate keys, wrong types, values out of bounds and undefined variables.
    """
    argv = _join_negative_numbers(list(sys.argv[1:] if argv is None else argv))
    names = [name for name, _ in _options(argv)]
    if demo is not None and not {"config", "model.name_or_path", "data.train"} & set(names):
        argv = ["--config", str(demo), *argv]
    known = _all_keys(config_class)
    lines: dict[str, str] = {}  # key -> "FILE line N"
    where: dict[str, str] = {}  # key -> where the value in force was given; what comes later wins
    unknown: list[str] = []
    for name, value in _options(argv):
        if name == "config":
            found, messages = _check_yaml(config_class, value)
            lines, where, unknown = {**lines, **found}, {**where, **found}, unknown + messages
        elif name in known or name.startswith("data.columns."):
            where[name] = _COMMAND_LINE
        elif name not in ("help", "print_config"):
            unknown.append(_unknown_key(name, _COMMAND_LINE, known))
    if unknown:
        raise UserError("; ".join(unknown))
    config = _typed(config_class, argv, lines)
    _check_values(config, where, dict(_options(argv)))
    written = copy.deepcopy(config)
    _expand_paths(config, where, [value for name, value in _options(argv) if name == "config"])
    if isinstance(config, RunConfig) and isinstance(written, RunConfig):
        config.as_written, config.given = written, where
    return config


def to_yaml(config: Any) -> str:
    """The resolved configuration as a YAML that `--config` reads back."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True)


def _join_negative_numbers(argv: list[str]) -> list[str]:
    """`--key -1e-5` as `--key=-1e-5`: argparse takes the number for an option and would not name what is wrong."""
    joined: list[str] = []
    for argument in argv:
        if joined and joined[-1].startswith("--") and "=" not in joined[-1] and re.match(r"-[\d.]", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _options(argv: list[str]) -> list[tuple[str, str]]:
    """(name, value) of every `--name value` and `--name=value`, in order; an empty value where there is none."""
    options = []
    for argument, following in zip(argv, [*argv, ""][1:], strict=True):
        if argument.startswith("--") and len(argument) > 2:
            name, equals, value = argument[2:].partition("=")
            options.append((name.removesuffix("+"), value if equals or following.startswith("--") else following))
    return options


def _all_keys(config_class: type, prefix: str = "") -> list[str]:
    """Every key of a dataclass, nested ones dotted, sections included."""
    keys: list[str] = []
    for name, kind in typing.get_type_hints(config_class).items():
        keys.append(prefix + name)
        if dataclasses.is_dataclass(kind):
            keys += _all_keys(typing.cast(type, kind), f"{prefix}{name}.")
    return keys


def _dataclass_in(hint: Any) -> type | None:
    """The dataclass that a hint such as `str | SourceConfig | list[str | SourceConfig]` allows, if any."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    return next((found for found in map(_dataclass_in, typing.get_args(hint)) if found), None)


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


def _check_yaml(config_class: type, file: str) -> tuple[dict[str, str], list[str]]:
    """Where each key of a YAML file stands (`key -> "FILE line N"`), and messages on unknown and duplicate keys."""
    if not file:
        raise UserError("--config needs a file")
    if not Path(file).is_file():
        raise UserError(f"--config {file}: no such file ({Path(file).absolute()})")
    try:
        root = yaml.compose(Path(file).read_text(encoding="utf-8-sig"), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from None
    if root is None:
        raise UserError(f"{file} is empty; leave --config out, or give it the keys to change")
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{file}: a config is a mapping of sections, as in 'train:' and below it 'learning_rate: 1e-5'")
    known = _all_keys(config_class)
    lines: dict[str, str] = {}
    messages: list[str] = []

    def walk(node: yaml.MappingNode, kind: type | None, prefix: str) -> None:
        """Check a mapping against the dataclass that its keys are fields of; None: any keys may stand there."""
        hints = typing.get_type_hints(kind) if kind else {}
        for key_node, value in node.value:
            name, line = str(key_node.value), key_node.start_mark.line + 1
            key, where = prefix + name, f"{file} line {line}"
            if key in lines:
                messages.append(f"duplicate key {key} ({lines[key]} and line {line})")
            lines[key] = where
            if kind and name not in hints:
                messages.append(_unknown_key(key, where, [*known, *(prefix + hint for hint in hints)]))
            elif dataclasses.is_dataclass(hints.get(name)):
                if not isinstance(value, yaml.MappingNode):
                    raise UserError(f"{where}: {key} is a section; give its keys below it")
                walk(value, typing.cast(type, hints[name]), f"{key}.")
            elif isinstance(value, yaml.MappingNode):
                # A free mapping, such as data.columns: only duplicates can be wrong.
                walk(value, _dataclass_in(hints.get(name)), f"{key}.")
            elif isinstance(value, yaml.SequenceNode):
                for index, item in enumerate(value.value):
                    if isinstance(item, yaml.MappingNode):
                        walk(item, _dataclass_in(hints.get(name)), f"{key}[{index}].")
            elif isinstance(value, yaml.ScalarNode) and value.style is None and _BASE_60.fullmatch(value.value):
                messages.append(f"{key}: YAML reads {value.value} as a base-60 number; put it in quotes ({where})")

    walk(root, config_class, "")
    return lines, messages


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
        union = re.search(r"Subtypes: \[(.*?)\] Errors: .*Given value: (.*)", reason)
        if union:
            reason = f"Expected {union[1].replace(', NoneType', ' or null')}. Got value: {union[2]}"
        reason = reason.replace("Expected a typing.Literal", "Expected one of ")
        value = reason.rsplit("Got value: ", 1)[-1]
        typed_here = any(name == key and value in (typed, _as_yaml(typed)) for name, typed in _options(argv))
        where = _COMMAND_LINE if typed_here or key not in lines else lines[key]
        raise UserError(f"{key}: {reason} ({where})") from None


def _as_yaml(text: str) -> str:
    """How a value typed on the command line reads in an error message: `true` as True."""
    try:
        return str(yaml.safe_load(text))
    except yaml.YAMLError:
        return text


def _help_of(config_class: type, dotted: str) -> str | None:
    kind: Any = config_class
    *sections, leaf = dotted.split(".")
    for section in sections:
        kind = typing.get_type_hints(kind).get(section)
        if not dataclasses.is_dataclass(kind):
            return None
    return next((f.metadata.get("help") for f in dataclasses.fields(kind) if f.name == leaf), None)


def _fields(config: Any, prefix: str = "") -> typing.Iterator[tuple[str, Any, dataclasses.Field]]:
    """(dotted key, object that holds it, field) of every leaf, in lists of sections too."""
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            yield from _fields(value, f"{prefix}{item.name}.")
            continue
        yield prefix + item.name, config, item
        for index, element in enumerate(value if isinstance(value, list) else []):
            if dataclasses.is_dataclass(element):
                yield from _fields(element, f"{prefix}{item.name}[{index}].")


def _check_values(config: Any, places: dict[str, str], typed: dict[str, str]) -> None:
    """What a type does not say: bounds, finite numbers, and null where there must be a value."""
    for key, holder, item in _fields(config):
        value = getattr(holder, item.name)
        minimum, above, below = (item.metadata.get(bound) for bound in ("minimum", "above", "below"))
        where = f" ({places[key]})" if key in places else ""
        if value is None and type(None) not in typing.get_args(typing.get_type_hints(type(holder))[item.name]):
            raise UserError(f"{key}: got null (nothing, or ~); give a value, or remove the key for its default{where}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if _BASE_60.fullmatch(typed.get(key, "")):
            raise UserError(f"{key}: expected a number, got {typed[key]} ({_COMMAND_LINE})")
        if not math.isfinite(value):
            raise UserError(f"{key}: expected a finite number, got {value}{where}")
        if minimum is not None and value < minimum:
            raise UserError(f"{key}: must be at least {minimum:g}, got {value:g}{where}")
        if above is not None and value <= above:
            raise UserError(f"{key}: must be above {above:g}, got {value:g}{where}")
        if below is not None and value >= below:
            raise UserError(f"{key}: must be below {below:g}, got {value:g}{where}")


def _expand_paths(config: Any, where: dict[str, str], files: list[str]) -> None:
    """Expand `~`, `$VARIABLES` and `$CONFIG_DIR` in path fields, in place.

    $CONFIG_DIR is the folder of the YAML file that the value stands in; of the last one for the command line.
    """

    def expand(key: str, text: str) -> str:
        """One path of the field `key`."""
        known = dict(os.environ)
        for file in files[-1:] + [file for file in files if where.get(key, "").startswith(f"{file} line ")]:
            known["CONFIG_DIR"] = str(Path(file).absolute().parent)

        def variable(match: re.Match) -> str:
            name = match.group(1) or match.group(2)
            if name not in known:
                raise UserError(f"{key}: {text} names the variable ${name}, which is not defined")
            return known[name]

        text = re.sub(r"\$(?:(\w+)|\{(\w+)\})", variable, text)
        try:
            expanded = str(Path(text).expanduser()) if text.startswith("~") else text
            return os.path.normpath(expanded) if "/../" in expanded else expanded
        except RuntimeError:
            raise UserError(f"{key}: {text}: there is no such user; write ./{text} for a name with a tilde") from None

    for key, holder, item in _fields(config):
        value = getattr(holder, item.name)
        if not item.metadata.get("path") or value is None:
            continue
        listed = value if isinstance(value, list) else [value]
        expanded = [expand(key, one) if isinstance(one, str) else one for one in listed]
        setattr(holder, item.name, expanded if isinstance(value, list) else expanded[0])
