"""What happens after an optimizer step: evaluation, a checkpoint, the end. One small object decides, on all ranks alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from toolkit.config import RunConfig
from toolkit.errors import Stopped, UserError
from toolkit.loop import Wishes
from toolkit.stopping import StopRequest

Evaluate = Callable[[int], dict[str, float]]
Save = Callable[[int], None]


class Agenda:
    """Decides by step numbers, and by what ranks wished for together with the loss: no rank ever decides by its own clock.

    evaluate: evaluation after a step, None without evaluation rows. save: writes the checkpoint of a step. failed: this
    rank knows of a save that went wrong. finish_saves: waits for a save in the background, and raises what it failed with.
    """

    def __init__(
        self,
        config: RunConfig,
        total_steps: int,
        *,
        is_main: bool,
        stop: StopRequest,
        evaluate: Evaluate | None,
        save: Save,
        failed: Callable[[], bool],
        finish_saves: Callable[[], None],
    ) -> None:
        self._config, self._total, self._is_main, self._stop = config, total_steps, is_main, stop
        self._evaluate, self._save, self._failed, self._finish_saves = evaluate, save, failed, finish_saves
        self._saved_at = time.monotonic()
        self.best: dict[str, Any] | None = None
        metric = config.checkpoint.keep_best
        if metric is not None and evaluate is None:
            raise UserError(f"checkpoint.keep_best: {metric} needs an evaluation; set data.eval or data.eval_fraction")

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluation so far, with `checkpoint.keep_best`."""
        return None if self.best is None else int(self.best["step"])

    def wishes(self) -> Wishes:
        """What this rank asks for, before the step's small collective."""
        minutes = self._config.checkpoint.save_every_minutes
        late = self._is_main and minutes > 0 and time.monotonic() - self._saved_at > 60 * minutes
        return Wishes(float(self._stop.requested), float(late), float(self._failed()))

    def check_metrics(self, metrics: dict[str, float]) -> None:
        """Raise UserError if an evaluation does not give the metric of `checkpoint.keep_best`."""
        metric = self._config.checkpoint.keep_best
        if metric is not None and metric not in metrics:
            raise UserError(
                f"checkpoint.keep_best: there is no metric {metric}; an evaluation gives {', '.join(metrics)}"
            )

    def after_step(self, step: int, wished: Wishes) -> None:
        """Step `step` (from 1) is done. Raises Stopped after saving, when any rank was asked to end."""
        config, best = self._config, False
        if self._evaluate is not None and (step == self._total or _due(step, config.eval_every)):
            best = self._is_best(step, self._evaluate(step))
        if wished.failed:
            self._finish_saves()
        if best or wished.save or wished.stop or _due(step, config.checkpoint.save_every):
            self._save(step)
            self._saved_at = time.monotonic()
        if wished.stop:
            self._finish_saves()
            raise Stopped(
                f"{self._stop.reason or 'another process was asked to end'}: checkpoint-{step} of {self._total} steps is saved "
                f"in {config.output_dir}; the same command with --resume auto goes on"
            )

    def _is_best(self, step: int, metrics: dict[str, float]) -> bool:
        metric = self._config.checkpoint.keep_best
        if metric is None:
            return False
        value = metrics[metric]
        less = "loss" in metric or "perplexity" in metric
        known = None if self.best is None else self.best["value"]
        if known is None or (value < known if less else value > known):
            self.best = {"metric": metric, "value": value, "step": step}
            return True
        return False


def _due(step: int, every: int | None) -> bool:
    return bool(every) and step % every == 0  # type: ignore[operator]
