"""The interface that recipes of one's own are written with, and the one of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

import toolkit
from tests.distributed.conftest import ROOT, Finished, launch

DEMO = ROOT / "recipes" / "demo"


def test_every_name_is_there_and_no_other() -> None:
    for name in toolkit.__all__:
        assert getattr(toolkit, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'fine_tone'"):
        _ = toolkit.fine_tone
    with pytest.raises(ImportError):
        from toolkit import no_such_name  # noqa: F401


def test_the_page_shows_the_file() -> None:
    assert (ROOT / "docs" / "own_recipe.py").read_text() in (ROOT / "docs" / "own_recipe.md").read_text()


@pytest.mark.distributed
def test_the_recipe_of_the_documentation_keeps_the_laws(tmp_path: Path) -> None:
    def run(layout: str, *more: str) -> Finished:
        folder = tmp_path / (layout + "_resumed" * bool(more))
        arguments = [
            "--model.name_or_path", str(DEMO / "model"), "--model.random_init", "true", "--data.train",
            str(DEMO / "train.jsonl"), "--data.eval", str(DEMO / "eval.jsonl"), "--data.max_rows", "60", "--train.max_steps",
            "6", "--train.learning_rate", "1e-3", "--train.global_batch_size", "10", "--train.max_tokens_per_micro_batch",
            "200", "--checkpoint.save_every", "3", "--output_dir", str(folder), *more,
        ]  # fmt: skip
        code, output = launch(ROOT / "docs" / "own_recipe.py", arguments, layout=layout)
        assert code == 0, output
        return Finished(code, output, folder)

    wanted = run("single")
    for mine in (run("ddp"), run("fsdp2"), run("ddp", "--resume", str(wanted.folder / "checkpoint-3"))):
        for one, other in zip(mine.steps(), wanted.steps()[-len(mine.steps()) :], strict=True):
            for key in ("step", "loss", "grad_norm", "answer_length"):
                assert one[key] == pytest.approx(other[key], rel=1e-5), (mine.folder.name, one["step"], key)
    before, after = wanted.evaluations()
    assert after["eval_loss"] < before["eval_loss"] - 1
    assert before["eval_answers"] == 60
    AutoModelForCausalLM.from_pretrained(wanted.folder / "model")
