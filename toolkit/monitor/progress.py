"""Progress of a run on the main process: a bar on a terminal, a line now and then elsewhere, and metrics.jsonl always."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.progress import MofNCompleteColumn, TextColumn

from toolkit.loop import StepResult
from toolkit.monitor.banner import bar, console


class ProgressLog:
    """Writes each result to metrics.jsonl and shows it. On ranks other than the main one it does nothing."""

    def __init__(self, path: Path, total_steps: int, log_every: int, *, active: bool) -> None:
        self._active, self._total, self._log_every = active, total_steps, log_every
        self._file = path.open("a", encoding="utf-8") if active else None
        state = TextColumn("loss {task.fields[loss]}  {task.fields[speed]} tokens/s")
        self._bar = bar(MofNCompleteColumn(), state, active=active)
        self._task = self._bar.add_task("training", total=total_steps, loss="-", speed="-")

    def __enter__(self) -> ProgressLog:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if self._file:
            self._file.close()

    def step(self, result: StepResult) -> None:
        """An optimizer step is done."""
        self._write(dataclasses.asdict(result))
        speed = f"{result.tokens_per_second:,.0f}"
        self._bar.update(self._task, completed=result.step, loss=f"{result.loss:.4f}", speed=speed)
        shown = result.step % self._log_every == 0 or result.step in (1, self._total)
        if self._active and not console.is_terminal and shown:
            console.print(
                f"step {result.step}/{self._total}  epoch {result.epoch:.2f}  loss {result.loss:.4f}  "
                f"grad_norm {result.grad_norm:.3f}  learning_rate {result.learning_rate:.3g}  {speed} tokens/s"
            )

    def evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """An evaluation after `step` optimizer steps is done."""
        self._write({"step": step, **metrics})
        if self._active:
            console.print(f"step {step}/{self._total}  " + "  ".join(f"{k} {v:.4f}" for k, v in metrics.items()))

    def _write(self, entry: dict[str, Any]) -> None:
        if self._file:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
