"""What a run wrote of its configuration, read again: those keys that all recipes have."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from toolkit.config import RunConfig
from toolkit.parsing import parse


def config_of(recorded: Mapping[str, Any]) -> RunConfig:
    """A configuration from the contents of a run's config.yaml, or of a checkpoint's record. Raises UserError for others."""
    shared = {item.name for item in fields(RunConfig)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(yaml.safe_dump({k: v for k, v in recorded.items() if k in shared}), encoding="utf-8")
        return parse(RunConfig, ["--config", str(file)])


def config_in(folder: Path) -> RunConfig | None:
    """The configuration that a run left in its folder; None where there is none, or one of somebody else's."""
    file = folder / "config.yaml"
    if not file.is_file():
        return None
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
    ours = isinstance(values, dict) and isinstance(values.get("model"), dict) and "output_dir" in values
    return config_of(values) if ours else None
