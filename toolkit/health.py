"""Steps that should not be taken: a non-finite loss or gradient, or a loss far off the recent ones."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable
from typing import Any

from toolkit.config import WatchConfig
from toolkit.errors import NumericalError
from toolkit.steps import Step

_WINDOW = 128
_FEWEST = 32  # losses before a spike can be told from noise


class BadStep(NumericalError):
    """A step that was not taken, and from before which the run goes on without it. index: counted from 0."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


class Health:
    """Judges each step by its global loss and gradient norm, which all ranks have alike, so that all judge alike."""

    def __init__(self, config: WatchConfig, say: Callable[[str], None]) -> None:
        self._config, self._say = config, say
        self._losses: deque[float] = deque(maxlen=_WINDOW)
        self.bad_steps: list[int] = []

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold for later judgements to be the same."""
        return {"losses": list(self._losses), "bad_steps": self.bad_steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint. Bad steps that were found after it stay known."""
        self._losses = deque(state.get("losses", []), maxlen=_WINDOW)
        self.bad_steps = sorted({*self.bad_steps, *state.get("bad_steps", [])})

    def objection(self, loss: float, grad_norm: float) -> str | None:
        """Why this step should not be taken, None if it may. Takes note of the loss of a good one."""
        if not math.isfinite(loss) or not math.isfinite(grad_norm):
            return f"non-finite {'gradient' if math.isfinite(loss) else 'loss'}"
        sigma = self._config.spike_sigma
        if sigma is not None and len(self._losses) >= _FEWEST:
            mean, deviation = statistics.fmean(self._losses), statistics.pstdev(self._losses)
            if loss > mean + sigma * deviation:
                return f"loss spike ({(loss - mean) / max(deviation, 1e-12):.1f} standard deviations)"
        self._losses.append(loss)
        return None

    def refuse(self, step: Step, reason: str, loss: float, grad_norm: float) -> None:
        """The step was not taken: end the run, go on without it, or go back, as `watch.on_bad_step` says.

        Raises NumericalError to end it, BadStep to go back.
        """
        rows = step.row_ids.tolist()
        shown = ", ".join(map(str, rows[:32])) + (f", ... ({len(rows)} rows)" if len(rows) > 32 else "")
        message = (
            f"{reason} at step {step.index + 1}, before the update: loss {loss}, grad_norm {grad_norm}, "
            f"training rows [{shown}]"
        )
        policy, allowed = self._config.on_bad_step, self._config.max_bad_steps
        self.bad_steps = sorted({*self.bad_steps, step.index})
        if policy == "stop" or len(self.bad_steps) > allowed:
            limit = "" if policy == "stop" else f" (watch.max_bad_steps: {allowed})"
            raise NumericalError(
                f"{message}; the weights are those of step {step.index}{limit}. "
                "Look at these rows, lower train.learning_rate, or lengthen the warm-up"
            )
        if policy == "rewind":
            raise BadStep(step.index, message)
        self._say(f"warning: {message}; the update is skipped ({len(self.bad_steps)} of {allowed})")
