"""Two curves, step by step: how far apart they are, whether that is rounding, and where they part. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Point:
    """One optimizer step of a run. gradient_norms: of each parameter, before clipping, in the order of the model."""

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    label_tokens: int
    gradient_norms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Bounds:
    """Relative differences that are taken for rounding.

    parameter: of one parameter's gradient norm, relative to it or, where that is larger, to the root mean square of all
    parameters' norms; a gradient that is nothing but rounding would differ from itself otherwise.
    """

    name: str
    loss: float
    grad_norm: float
    parameter: float


# Sums in another order, over 20 steps. The others are about the precision: bf16 keeps 8 bits of mantissa, 2^-8 = 0.4 % per
# product, fp16 11 bits; PowerSGD sends approximations. Those of loss and norm hold in tests/distributed/test_same_curve.py;
# of the parameters of the demo none came to half of its bound.
FP32 = Bounds("fp32", 1e-5, 1e-5, 5e-5)
FP16 = Bounds("fp16", 1e-3, 5e-3, 1e-2)
BF16 = Bounds("bf16", 1e-2, 5e-2, 0.1)
POWER_SGD = Bounds("PowerSGD", 5e-2, 0.3, 0.8)


def bounds_of(settings: Iterable[tuple[Mapping[str, Any], str]]) -> Bounds:
    """The widest bounds that two runs need. settings: the layout file and the dtype of the trained weights of each."""
    needed = [FP32]
    for layout, dtype in settings:
        hook = str((layout.get("parallelism_config") or {}).get("ddp_comm_hook", "no")).lower()
        words = {str(layout.get("mixed_precision", "no")).lower(), hook, dtype}
        needed += [BF16] * bool(words & {"bf16", "bfloat16"}) + [FP16] * ("fp16" in words)
        needed += [POWER_SGD] * hook.endswith("power_sgd")
    return max(needed, key=lambda bounds: bounds.loss)


@dataclass(frozen=True)
class Difference:
    """The first step at which two curves part, what says so in words, and the parameters whose gradients do."""

    step: int
    reasons: list[str]
    parameters: list[str]
    of_parameters: int


@dataclass(frozen=True)
class Comparison:
    """How a curve lies beside the reference. Worst differences are relative; `nan` where one of the two is not finite.

    by_step: the larger of the relative differences of loss and gradient norm at each step.
    """

    steps: int
    bounds: Bounds
    worst_loss: float
    worst_grad_norm: float
    learning_rate_equal: bool
    rows_equal: bool
    by_step: list[float]
    first: Difference | None

    @property
    def verdict(self) -> str:
        """In the words of the table."""
        if self.first is not None:
            return f"differs from step {self.first.step}"
        exact = _within(self.worst_loss, FP32.loss) and _within(self.worst_grad_norm, FP32.grad_norm)
        return "same" if self.bounds == FP32 or exact else f"same within {self.bounds.name}"


def compare(reference: Sequence[Point], curve: Sequence[Point], bounds: Bounds) -> Comparison:
    """`curve` beside `reference`, both from step 1 on."""
    pairs = list(zip(reference, curve, strict=False))
    losses = [relative(ours.loss, theirs.loss) for theirs, ours in pairs]
    norms = [relative(ours.grad_norm, theirs.grad_norm) for theirs, ours in pairs]
    return Comparison(
        steps=len(curve),
        bounds=bounds,
        worst_loss=_worst(losses),
        worst_grad_norm=_worst(norms),
        learning_rate_equal=all(_same_rate(theirs, ours) for theirs, ours in pairs),
        rows_equal=all(_tokens(theirs) == _tokens(ours) for theirs, ours in pairs),
        by_step=[_worst(pair) for pair in zip(losses, norms, strict=True)],
        first=_first_difference(reference, curve, bounds),
    )


def relative(value: float, reference: float) -> float:
    """|value - reference| relative to the larger of the two; 0 where both are the same non-finite one, else nan."""
    if not math.isfinite(value) or not math.isfinite(reference):
        return 0.0 if str(value) == str(reference) else math.nan
    largest = max(abs(value), abs(reference))
    return abs(value - reference) / largest if largest else 0.0


def differing_parameters(theirs: Point, ours: Point, bounds: Bounds) -> list[str]:
    """Parameters whose gradient norms differ by more than rounding, in the order of the model."""
    names = theirs.gradient_norms.keys() & ours.gradient_norms.keys()
    floor = math.sqrt(sum(theirs.gradient_norms[name] ** 2 for name in names) / max(1, len(names)))
    found = [name for name in {**theirs.gradient_norms, **ours.gradient_norms} if name not in names]
    for name in (name for name in theirs.gradient_norms if name in names):
        value, wanted = ours.gradient_norms[name], theirs.gradient_norms[name]
        if not math.isfinite(value) or not math.isfinite(wanted):
            found += [name] if str(value) != str(wanted) else []
            continue
        scale = max(abs(value), abs(wanted), floor if math.isfinite(floor) else 0.0)
        found += [name] if abs(value - wanted) > bounds.parameter * scale else []
    return found


def _first_difference(reference: Sequence[Point], curve: Sequence[Point], bounds: Bounds) -> Difference | None:
    for theirs, ours in zip(reference, curve, strict=False):
        parameters = differing_parameters(theirs, ours, bounds)
        reasons = _reasons(theirs, ours, bounds)
        if parameters and not reasons:
            name = parameters[0]
            values = " against ".join(f"{point.gradient_norms.get(name, math.nan):.6g}" for point in (ours, theirs))
            reasons = [f"gradient norm of {name} {values}"]
        if reasons:
            return Difference(theirs.step, reasons, parameters, len(theirs.gradient_norms))
    if len(reference) != len(curve):
        last = min(len(reference), len(curve))
        return Difference(last + 1, [f"it ends after {len(curve)} steps, the other after {len(reference)}"], [], 0)
    return None


def _reasons(theirs: Point, ours: Point, bounds: Bounds) -> list[str]:
    """What a step shows, the cause before its consequences: other rows make another loss."""
    found = []
    for name in ("label_tokens", "tokens"):
        value, wanted = getattr(ours, name), getattr(theirs, name)
        if value != wanted:
            found.append(f"{name} {value} against {wanted}: the rows differ")
    if not _same_rate(theirs, ours):
        found.append(f"learning_rate {ours.learning_rate:.9g} against {theirs.learning_rate:.9g}")
    for name, bound in (("loss", bounds.loss), ("grad_norm", bounds.grad_norm)):
        value, wanted = getattr(ours, name), getattr(theirs, name)
        if not _within(relative(value, wanted), bound):
            found.append(f"{name} {value:.9g} against {wanted:.9g}")
    return found


def _same_rate(theirs: Point, ours: Point) -> bool:
    # The same formula in the same precision; another processor may round its last bit.
    return math.isclose(theirs.learning_rate, ours.learning_rate, rel_tol=1e-12)


def _tokens(point: Point) -> tuple[int, int]:
    return point.tokens, point.label_tokens


def _within(difference: float, bound: float) -> bool:
    """False for nan too."""
    return difference <= bound


def _worst(differences: Iterable[float]) -> float:
    """The largest, nan above all."""
    found = list(differences)
    return math.nan if any(map(math.isnan, found)) else max(found, default=0.0)
