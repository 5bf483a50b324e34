"""What a checkpoint says of its run besides tensors, and what a resumed run finds changed."""

from __future__ import annotations

import dataclasses
from importlib.metadata import version
from typing import Any

from toolkit.checkpoint.changes import config_changes, record_changes, refuse_unless_allowed
from toolkit.data.prepared import PreparedData
from toolkit.start import Run

_PACKAGES = ("toolkit", "torch", "accelerate", "transformers", "tokenizers", "datasets", "peft")


def describe(run: Run, data: PreparedData, total_steps: int) -> dict[str, Any]:
    """Config, data, layout and versions of this run."""
    layout = run.layout
    return {
        "total_steps": total_steps,
        "seed": run.config.seed,
        "config": dataclasses.asdict(run.config),
        "data": data.fingerprint,
        "layout": {
            "name": layout.name,
            "processes": layout.accelerator.num_processes,
            "dp_size": layout.dp_size,
            "mixed_precision": layout.mixed_precision,
            "device": layout.device.type,
        },
        "versions": {package: version(package) for package in _PACKAGES},
    }


def tell_changes(run: Run, now: dict[str, Any]) -> None:
    """Print what is different from the checkpoint's run. Raises UserError for what alters the curve and is not allowed."""
    assert run.checkpoint is not None
    record = run.checkpoint.record
    changes = config_changes(record.get("config") or {}, run.config) + record_changes(record, now)
    refuse_unless_allowed(changes, run.config.allow_changes)
    for change in changes:
        run.say(f"resume: {change}")
    if record.get("total_steps") != now["total_steps"]:
        run.say(
            f"resume: {record.get('total_steps')} -> {now['total_steps']} steps: from step {run.checkpoint.step + 1} on, the "
            "learning rate is that of the new schedule"
        )
