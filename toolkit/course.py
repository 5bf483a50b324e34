"""The course of a run: its steps, with evaluations and checkpoints between them, from the beginning or from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from toolkit.agenda import Agenda
from toolkit.checkpoint.folder import Checkpoint
from toolkit.checkpoint.resume import newest_whole
from toolkit.checkpoint.save import Saver, SmallFiles
from toolkit.checkpoint.tensors import restore_tensors
from toolkit.data.plan import BatchPlan
from toolkit.data.prepared import PreparedData
from toolkit.errors import NumericalError
from toolkit.evaluation import evaluate_loss
from toolkit.health import BadStep, Health
from toolkit.loop import Wishes, train
from toolkit.loss_scale import LossScale
from toolkit.monitor.gradient_log import GradientLog
from toolkit.monitor.precision import share_unchanged, snapshot
from toolkit.monitor.progress import ProgressLog, logged
from toolkit.objectives import ObjectiveModule
from toolkit.optim import Schedule
from toolkit.start import Run
from toolkit.steps import Feed, StreamFeed


@dataclass(frozen=True)
class Training:
    """Everything that the steps of a run need, prepared."""

    run: Run
    module: ObjectiveModule
    optimizer: torch.optim.Optimizer
    plan: BatchPlan
    feed: Feed | StreamFeed
    eval_feed: Feed | None
    schedule: Schedule
    data: PreparedData
    log: ProgressLog
    gradient_log: GradientLog | None
    described: dict[str, Any]
    small_files: SmallFiles


class Course:
    """What a run remembers from step to step besides weights and optimizer: losses, scale, evaluations, saves."""

    def __init__(self, training: Training) -> None:
        self._t, run = training, training.run
        self._health = Health(run.config.watch, run.say)
        self._loss_scale = LossScale.starting_at(run.layout.choices.start_loss_scale)
        self._evaluations: dict[str, dict[str, float]] = {}
        self._watched = snapshot(training.module)
        self._saver = Saver(
            run.layout,
            run.folder.path,
            run.config.checkpoint,
            small_files=training.small_files,
            saved=training.log.checkpoint,
            beat=run.beat,
            say=run.say,
        )
        self._agenda = Agenda(
            run.config,
            training.schedule.total_steps,
            is_main=run.layout.is_main,
            stop=run.stop,
            evaluate=None if training.eval_feed is None else self._evaluate,
            save=self._save,
            failed=self._saver.failed,
            finish_saves=self._saver.finish,
        )

    def run(self) -> dict[str, dict[str, float]]:
        """All steps that are left; returns the evaluations before the first and after the last. See `fine_tune`."""
        t, run = self._t, self._t.run
        start = self._begin()
        run.stop.guard()
        while True:
            try:
                self._steps(start)
                break
            except BadStep as bad:
                self._saver.finish()
                start = self._restore(_checkpoint_before(run, bad))
                t.log.rewind(start)
                if t.gradient_log is not None:
                    t.gradient_log.rewind(start)
        self._saver.finish()
        if t.eval_feed is not None and "after" not in self._evaluations:
            self._evaluate(t.schedule.total_steps)
        return self._evaluations

    def _begin(self) -> int:
        """The step to begin after; evaluated, or restored."""
        t, run, total_steps = self._t, self._t.run, self._t.schedule.total_steps
        if run.checkpoint is None:
            if t.eval_feed is not None:
                self._agenda.check_metrics(self._evaluate(0, "before"))
            return 0
        start = self._restore(run.checkpoint)
        self._evaluations |= _logged_evaluations(run, total_steps)
        run.say(f"resume: going on after step {start} of {total_steps}, from {run.checkpoint.path}")
        return start

    def _steps(self, start: int) -> None:
        t, config = self._t, self._t.run.config
        passed_by = self._health.bad_steps if config.watch.on_bad_step == "rewind" else ()
        train(
            t.run.layout,
            t.module,
            t.optimizer,
            t.feed.steps(t.plan, start, t.schedule.total_steps, passed_by),
            schedule=t.schedule,
            max_grad_norm=config.train.max_grad_norm,
            seed=config.seed,
            health=self._health,
            loss_scale=self._loss_scale,
            beat=t.run.beat,
            say=t.run.say,
            record=t.log.step,
            record_gradients=None if t.gradient_log is None else t.gradient_log.step,
            wishes=self._agenda.wishes,
            after_step=self._after_step,
        )

    def _after_step(self, step: int, wished: Wishes) -> None:
        run = self._t.run
        if step == 1 and self._watched:
            run.say(share_unchanged(run.layout, self._t.module, self._watched))
        run.watch.step(step)
        self._agenda.after_step(step, wished)

    def _evaluate(self, step: int, name: str = "after") -> dict[str, float]:
        t, run = self._t, self._t.run
        assert t.eval_feed is not None
        run.beat("evaluate", step)
        objective = run.layout.accelerator.unwrap_model(t.module).objective
        found = evaluate_loss(
            run.layout,
            t.module,
            t.eval_feed,
            t.data.eval_ranges,
            unit=objective.unit,
            perplexity=objective.perplexity,
            together=None if t.eval_feed.looked_at is None else run.config.train.global_batch_size,
            beat=run.beat,
        )
        self._evaluations[name] = found
        t.log.evaluation(step, found)
        return found

    def _save(self, step: int) -> None:
        remembered = {"health": self._health.state(), "loss_scale": self._loss_scale.state()}
        record = self._t.described | {"step": step, "best": self._agenda.best} | remembered
        self._saver.save(step, self._t.module, self._t.optimizer, record, self._agenda.best_step)

    def _restore(self, checkpoint: Checkpoint) -> int:
        t, run, record = self._t, self._t.run, checkpoint.record
        run.beat("restore", checkpoint.step)
        restore_tensors(checkpoint.path, run.layout.accelerator.unwrap_model(t.module), t.optimizer)
        self._health.restore(record.get("health") or {})
        self._loss_scale.restore(record.get("loss_scale") or {})
        self._agenda.best = record.get("best")
        return checkpoint.step


def _checkpoint_before(run: Run, bad: BadStep) -> Checkpoint:
    checkpoint = run.layout.on_main(lambda: newest_whole(run.folder.path, run.say))
    if checkpoint is None:
        raise NumericalError(f"{bad}; there is no checkpoint to go back to (checkpoint.save_every)")
    run.say(f"warning: {bad}; going back to {checkpoint.path.name}, that batch is passed by")
    return checkpoint


def _logged_evaluations(run: Run, total_steps: int) -> dict[str, dict[str, float]]:
    """The evaluations before the first step and after the last that an earlier start has made, the same on all ranks."""

    def read() -> dict[str, dict[str, float]]:
        """On the main process."""
        names = {0: "before", total_steps: "after"}
        found = [entry for entry in logged(run.folder.metrics) if "eval_loss" in entry and entry["step"] in names]
        return {names[entry["step"]]: {k: v for k, v in entry.items() if k != "step"} for entry in found}

    return run.layout.on_main(read)
