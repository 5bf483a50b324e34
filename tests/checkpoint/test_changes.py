"""What may change between a run and its resumption, and what alters the curve. D03."""

from __future__ import annotations

import dataclasses

import pytest

from toolkit.checkpoint.changes import config_changes, record_changes, refuse_unless_allowed
from toolkit.config import DataConfig, ModelConfig, RunConfig, SourceConfig, TrainConfig
from toolkit.errors import UserError


def run(**options) -> RunConfig:
    options.setdefault("model", ModelConfig(name_or_path="m"))
    options.setdefault("data", DataConfig(train="a.jsonl"))
    return RunConfig(**options)


@pytest.mark.parametrize(
    ("changed", "name", "alters"),
    [
        (run(train=TrainConfig(learning_rate=1.0)), "train.learning_rate", True),
        (run(train=TrainConfig(global_batch_size=8)), "train.global_batch_size", True),
        (run(train=TrainConfig(max_steps=80)), "train.max_steps", True),
        (run(train=TrainConfig(label_smoothing_factor=0.1)), "train.label_smoothing_factor", True),
        (run(seed=1), "seed", True),
        (run(model=ModelConfig(name_or_path="n")), "model.name_or_path", True),
        (run(data=DataConfig(train="a.jsonl", shuffle=False)), "data.shuffle", True),
        (run(data=DataConfig(train="a.jsonl", eval="b.jsonl")), "data.eval", True),
        (run(data=DataConfig(train=[SourceConfig(path="a.jsonl", weight=2.0)])), "data.train", True),
        (run(data=DataConfig(train="elsewhere/a.jsonl")), "data.train", False),
        (run(train=TrainConfig(micro_batch_size=1)), "train.micro_batch_size", False),
        (run(eval_every=5), "eval_every", False),
        (run(output_dir="b"), "output_dir", False),
    ],
)
def test_a_change_is_seen_and_judged(changed: RunConfig, name: str, alters: bool) -> None:
    changes = config_changes(dataclasses.asdict(run()), changed)
    assert [(change.name, change.alters) for change in changes] == [(name, alters)]
    if alters:
        with pytest.raises(UserError, match=name):
            refuse_unless_allowed(changes, ["somethingelse"])
    refuse_unless_allowed(changes, [name])


def test_how_a_run_is_started_is_no_change() -> None:
    assert config_changes(dataclasses.asdict(run()), run(resume="auto", overwrite=True, allow_changes=["seed"])) == []


def test_a_checkpoint_from_before_a_key_had_its_default() -> None:
    recorded = dataclasses.asdict(run())
    del recorded["train"]["label_smoothing_factor"], recorded["data"]["system_policy"], recorded["allow_changes"]
    assert config_changes(recorded, run()) == []
    [change] = config_changes(recorded, run(train=TrainConfig(label_smoothing_factor=0.1)))
    assert (change.old, change.new, change.alters) == (0.0, 0.1, True)


def test_other_rows_are_refused_and_another_layout_is_told() -> None:
    now = {"data": "x", "layout": {"processes": 4}, "versions": {"torch": "2"}}
    assert record_changes(now, now) == []
    found = record_changes({"data": "y", "layout": {"processes": 2}, "versions": {"torch": "1"}}, now)
    assert [(change.name, change.alters) for change in found] == [
        ("data", True), ("layout.processes", False), ("versions.torch", False),
    ]  # fmt: skip
    assert "2 -> 4" in str(found[1])
