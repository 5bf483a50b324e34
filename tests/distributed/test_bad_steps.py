"""A step that must not be taken, in real runs: the run ends, goes on without it, or goes back. E03."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.distributed.conftest import ROOT, Finished, launch
from toolkit.checkpoint.folder import find_checkpoints, wrong_files

pytestmark = pytest.mark.distributed

DEMO = ROOT / "recipes" / "demo"
# The batch of step 7 gives a loss that is no number.
POISONED = """
import sys
sys.path.insert(0, {root!r})
import toolkit.objectives.causal_lm as causal_lm
import toolkit.steps
from toolkit.errors import exit_with_message
poisoned = []
steps = toolkit.steps.Feed.steps
def tell(self, *arguments):
    for step in steps(self, *arguments):
        poisoned[:] = [step.index == 6]
        yield step
    poisoned.clear()
toolkit.steps.Feed.steps = tell
call = causal_lm.CausalLanguageModeling.__call__
def poison(self, model, batch):
    output = call(self, model, batch)
    return output._replace(loss_sum=output.loss_sum * float("nan")) if poisoned == [True] and model.training else output
causal_lm.CausalLanguageModeling.__call__ = poison
from recipes.sft import main
sys.argv[1:] = {arguments!r}
exit_with_message(main)
"""


def run(folder: Path, layout: str, *more: str) -> Finished:
    settings = {
        "model.name_or_path": DEMO / "model",
        "model.random_init": "true",
        "data.train": DEMO / "train.jsonl",
        "data.max_rows": 100,
        "train.global_batch_size": 4,
        "train.max_steps": 12,
        "train.learning_rate": "1e-3",
        "checkpoint.save_every": 5,
        "checkpoint.keep_last": 1,
        "output_dir": folder,
    }
    arguments = [*(str(part) for key, value in settings.items() for part in (f"--{key}", value)), *more]
    script = folder.with_suffix(".py")
    script.write_text(POISONED.format(root=str(ROOT), arguments=arguments), encoding="utf-8")
    code, output = launch(script, [], layout=layout, timeout=100)
    return Finished(code, output, folder)


@pytest.mark.parametrize("layout", ["single", "ddp"])
def test_by_default_the_run_ends_and_the_checkpoint_stays(layout: str, tmp_path: Path) -> None:
    stopped = run(tmp_path / "run", layout)
    assert stopped.code != 0
    assert stopped.output.count("stopped: non-finite loss at step 7") == 1, stopped.output
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 7
    assert math.isnan(last["loss"])
    [kept] = find_checkpoints(tmp_path / "run")
    assert (kept.step, kept.fault, wrong_files(kept, kept.files)) == (5, None, [])


def test_skipping_and_going_back_end_with_the_same_weights(tmp_path: Path) -> None:
    skipped = run(tmp_path / "skipped", "single", "--watch.on_bad_step", "skip")
    assert skipped.code == 0, skipped.output
    assert skipped.output.count("the update is skipped (1 of 3)") == 1
    back = run(tmp_path / "back", "ddp", "--watch.on_bad_step", "rewind")
    assert back.code == 0, back.output
    assert back.output.count("going back to checkpoint-5, that batch is passed by") == 1
    assert [entry["step"] for entry in back.steps()] == [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    for mine, other in zip(back.steps(), [e for e in skipped.steps() if e["step"] != 7], strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert mine["learning_rate"] == other["learning_rate"]
    found, expected = (load_file(r.folder / "model" / "model.safetensors") for r in (back, skipped))
    for key, value in expected.items():
        assert (found[key] - value).abs().max() < 1e-5, key
        assert torch.isfinite(value).all()


def test_going_back_needs_a_checkpoint(tmp_path: Path) -> None:
    stopped = run(tmp_path / "run", "single", "--watch.on_bad_step", "rewind", "--checkpoint.save_every", "50")
    assert stopped.code != 0
    assert "there is no checkpoint to go back to" in stopped.output
