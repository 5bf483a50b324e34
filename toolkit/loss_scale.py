"""Scaling the loss where gradients pass through fp16, whose smallest number is 6e-8 and whose largest is 65504."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolkit.errors import NumericalError

# As in torch.amp.GradScaler: halved at an overflow, doubled after this many steps without one.
_GROW_AFTER = 2000


@dataclass
class LossScale:
    """A power of two that every micro-batch's loss is multiplied by, and every gradient divided by.

    A step whose gradients overflow is computed again at half the scale, so that no batch is lost. All ranks decide by the
    global norm, which they have alike. `value` 1.0 and not `active`: nothing is scaled.
    """

    value: float = 1.0
    good_steps: int = 0
    active: bool = False

    @staticmethod
    def starting_at(value: float | None) -> LossScale:
        """The scale of a layout (`Choices.start_loss_scale`); None does not scale."""
        return LossScale() if value is None else LossScale(value, active=True)

    def overflowed(self, loss: float, grad_norm: float, say: Callable[[str], None]) -> bool:
        """True when the step must be computed again, at half the scale. Raises NumericalError when that does not help."""
        if not self.active or math.isfinite(grad_norm) or not math.isfinite(loss):
            return False
        if self.value < 2.0**-24:
            raise NumericalError(
                "gradients overflow fp16 at every loss scale down to 2^-24; look at the data and train.learning_rate, or "
                "use a bf16 layout"
            )
        self.value, self.good_steps = self.value / 2, 0
        say(f"fp16: a gradient was too large; the step is computed again with loss scale {self.value:g}")
        return True

    def good(self) -> None:
        """A step went well."""
        self.good_steps += 1
        if self.active and self.good_steps >= _GROW_AFTER:
            self.value, self.good_steps = self.value * 2, 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold for the next steps to be the same."""
        return {"value": self.value, "good_steps": self.good_steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; one of a layout without a scale has nothing to say."""
        if self.active and state.get("value", 1.0) != 1.0:
            self.value, self.good_steps = float(state["value"]), int(state["good_steps"])
