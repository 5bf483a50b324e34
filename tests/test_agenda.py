"""What happens after which step. D05."""

from __future__ import annotations

import pytest

from toolkit.agenda import Agenda
from toolkit.config import CheckpointConfig, DataConfig, RunConfig
from toolkit.errors import Stopped, UserError
from toolkit.loop import Wishes
from toolkit.stopping import StopRequest


def walk(losses: dict[int, float] | None, total: int = 12, wished: dict[int, Wishes] | None = None, **options):
    """Run an agenda over steps; returns (steps evaluated, steps saved, best step)."""
    evaluated: list[int] = []
    saved: list[int] = []
    eval_every = options.pop("eval_every", None)
    config = RunConfig(data=DataConfig(), checkpoint=CheckpointConfig(**options), eval_every=eval_every)

    def evaluate(step: int) -> dict[str, float]:
        evaluated.append(step)
        return {"eval_loss": losses[step], "eval_accuracy": -losses[step]}

    agenda = Agenda(
        config, total, is_main=True, stop=StopRequest(1), evaluate=None if losses is None else evaluate,
        save=saved.append, failed=lambda: False, finish_saves=lambda: None,
    )  # fmt: skip
    for step in range(1, total + 1):
        agenda.after_step(step, (wished or {}).get(step, Wishes()))
    return evaluated, saved, agenda.best_step


def test_evaluation_and_saves_by_steps() -> None:
    losses = dict.fromkeys(range(1, 13), 1.0)
    assert walk(losses, eval_every=5, save_every=4) == ([5, 10, 12], [4, 8, 12], None)
    assert walk(None, save_every=None) == ([], [], None)


@pytest.mark.parametrize("metric", ["eval_loss", "eval_accuracy"])
def test_the_best_evaluation_is_saved_where_it_is_found(metric: str) -> None:
    """Save every 3 and evaluate every 2: the two need not fall together."""
    losses = {2: 3.0, 4: 1.0, 6: 2.0, 8: 2.5, 10: 0.5, 12: 0.9}
    assert walk(losses, eval_every=2, save_every=3, keep_best=metric) == (
        [2, 4, 6, 8, 10, 12],
        [2, 3, 4, 6, 9, 10, 12],
        10,
    )


def test_what_any_rank_wishes_is_done_by_all() -> None:
    assert walk(None, wished={5: Wishes(save=1.0)})[1] == [5]
    with pytest.raises(Stopped, match="checkpoint-7 of 12"):
        walk(None, wished={7: Wishes(stop=2.0)})


def test_minutes_are_the_main_process_s() -> None:
    config = RunConfig(checkpoint=CheckpointConfig(save_every_minutes=1e-9))
    common = {
        "stop": StopRequest(1), "evaluate": None, "save": print, "failed": lambda: False, "finish_saves": lambda: None,
    }  # fmt: skip
    assert Agenda(config, 1, is_main=True, **common).wishes() == Wishes(save=1.0)
    assert Agenda(config, 1, is_main=False, **common).wishes() == Wishes()


def test_the_best_needs_an_evaluation_that_gives_it() -> None:
    with pytest.raises(UserError, match="keep_best: eval_loss needs an evaluation"):
        walk(None, keep_best="eval_loss")
    agenda = Agenda(
        RunConfig(checkpoint=CheckpointConfig(keep_best="eval_f1")), 1, is_main=True, stop=StopRequest(1),
        evaluate=lambda step: {}, save=print, failed=lambda: False, finish_saves=lambda: None,
    )  # fmt: skip
    with pytest.raises(UserError, match="no metric eval_f1; an evaluation gives eval_loss"):
        agenda.check_metrics({"eval_loss": 1.0})
