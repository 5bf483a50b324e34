"""Progress of a run on the main process: a bar on a terminal, a line now and then elsewhere, and metrics.jsonl always."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.progress import MofNCompleteColumn, TextColumn

from toolkit.loop import StepResult
from toolkit.monitor.banner import bar, console


class ProgressLog:
    """Writes each result to metrics.jsonl and shows it. On ranks other than the main one it does nothing."""

    def __init__(self, path: Path, total_steps: int, log_every: int, *, start: int, active: bool) -> None:
        self._active, self._total, self._log_every, self._path = active, total_steps, log_every, path
        self._file: TextIO | None = open_at(path, start) if active else None
        state = TextColumn("loss {task.fields[loss]}  {task.fields[speed]} tokens/s")
        self._bar = bar(MofNCompleteColumn(), state, active=active)
        self._task = self._bar.add_task("training", total=total_steps, completed=start, loss="-", speed="-")

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
        entry = dataclasses.asdict(result)
        own = entry.pop("metrics")
        self._write(entry | own)
        speed = f"{result.tokens_per_second:,.0f}"
        self._bar.update(self._task, completed=result.step, loss=f"{result.loss:.4f}", speed=speed)
        shown = result.step % self._log_every == 0 or result.step in (1, self._total)
        if self._active and not console.is_terminal and shown:
            console.print(
                f"step {result.step}/{self._total}  epoch {result.epoch:.2f}  loss {result.loss:.4f}  "
                f"grad_norm {result.grad_norm:.3f}  learning_rate {result.learning_rate:.3g}  {speed} tokens/s"
                + "".join(f"  {name} {value:.4g}" for name, value in result.metrics.items())
            )

    def evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """An evaluation after `step` optimizer steps is done."""
        self._write({"step": step, **metrics})
        if self._active:
            console.print(f"step {step}/{self._total}  " + "  ".join(f"{k} {_figure(v)}" for k, v in metrics.items()))

    def checkpoint(self, step: int, seconds: float, stalled: float) -> None:
        """A checkpoint is complete: seconds to write it, and seconds that training stood still for it."""
        self._write({"step": step, "save_seconds": seconds, "save_stall_seconds": stalled})
        if self._active:
            console.print(
                f"step {step}/{self._total}  checkpoint-{step} saved in {seconds:.1f} s ({stalled:.1f} s of stall)"
            )

    def rewind(self, step: int) -> None:
        """Training goes on from `step`: what was logged after it is not part of this run any more."""
        if self._file:
            self._file.close()
            self._file = open_at(self._path, step)
        self._bar.update(self._task, completed=step)

    def _write(self, entry: dict[str, Any]) -> None:
        if self._file:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()


def logged(path: Path) -> list[dict[str, Any]]:
    """The entries of a metrics.jsonl; a last line that a killed run left half-written does not count."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return entries


def open_at(path: Path, step: int) -> TextIO:
    """Open `path` to append, with only the entries of the first `step` steps in it: a resumed run writes the others again.

    The cut file takes the place of the old one in one move, so that nothing is lost if this process dies here.
    """
    kept = [entry for entry in logged(path) if entry["step"] <= step] if step else []
    part = path.with_name(path.name + ".partial")
    part.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")
    part.replace(path)
    return path.open("a", encoding="utf-8")


def _figure(value: float) -> str:
    """Counts are ints."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
