"""A run of the demo's model on a few of its rows, as command-line flags; what tests change comes on top."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "recipes" / "demo"
_RECIPE = {
    "model.name_or_path": DEMO / "model",
    "model.random_init": "true",
    "data.train": DEMO / "train.jsonl",
    "data.max_rows": 300,
    "train.global_batch_size": 4,
    "train.learning_rate": "1e-3",
}


def demo_flags(**settings: object) -> list[str]:
    """--KEY=VALUE of the recipe and of `settings`, whose keys may have dots by `**{"a.b": value}`."""
    return [f"--{key}={value}" for key, value in {**_RECIPE, **settings}.items()]
