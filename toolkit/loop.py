"""The training loop, the only place that calls backward, clips and steps. One optimizer step reads top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch

from toolkit.gradients import gradient_squares, scale_gradients
from toolkit.health import Health
from toolkit.layout import Layout
from toolkit.look import again, look, with_seen
from toolkit.loss_scale import LossScale
from toolkit.monitor.heartbeat import Beat
from toolkit.objectives import mean
from toolkit.optim import Schedule, set_learning_rate
from toolkit.steps import Step


class Wishes(NamedTuple):
    """What ranks ask for at the end of a step. They are summed over ranks with the loss, so that all know of them.

    stop: this process was asked to end; save: the main process's clock says that it is time for a checkpoint; failed: a
    checkpoint that was being written in the background has failed.
    """

    stop: float = 0.0
    save: float = 0.0
    failed: float = 0.0


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step reports; the fields are the keys of metrics.jsonl.

    step: counted from 1; epoch: passes over the data so far; loss: per unit of weight (labelled token) over the whole
    global batch; grad_norm: global, before clipping; learning_rate: the one used; tokens, label_tokens: real tokens of
    the global batch, and those that carried loss; seconds: wall time of the step, of which data_seconds were spent
    waiting for the micro-batches of this rank. metrics: the objective's own, per unit of weight, each under its name.
    """

    step: int
    epoch: float
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    label_tokens: int
    seconds: float
    data_seconds: float
    tokens_per_second: float
    metrics: dict[str, float] = field(default_factory=dict)


def train(
    layout: Layout,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: Iterable[Step],
    *,
    schedule: Schedule,
    max_grad_norm: float,
    seed: int,
    health: Health,
    loss_scale: LossScale,
    beat: Beat,
    say: Callable[[str], None],
    record: Callable[[StepResult], None],
    record_gradients: Callable[[int, torch.Tensor], None] | None = None,
    wishes: Callable[[], Wishes],
    after_step: Callable[[int, Wishes], None],
) -> None:
    """Run the optimizer steps. The gradient is that of (sum of losses) / (sum of weights) over the whole global batch, however
    many ranks and micro-batches it was cut into. A step that `health` objects to is not taken.

    `record` gets each step's result, `record_gradients` its number and the norms `[parameters]` of the gradients, in the
    optimizer's order, then `after_step` (evaluate, save, stop) its number and what any rank wished for. `beat` is told where
    this rank is, `say` prints a line. Raises NumericalError before an update with a non-finite loss or gradient.
    """
    # The optimizer's parameters, not the module's: after a forward, FSDP2 may show gathered ones that get no gradient.
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    module.train()
    asked = time.perf_counter()
    beat("data")
    for step in steps:
        started = time.perf_counter()
        learning_rate = schedule(step.index)
        set_learning_rate(optimizer, learning_rate)
        while True:
            # Dropout is a function of (seed, step, rank), so that a resumed run draws what the uninterrupted one drew.
            dropout = (seed * 1_000_003 + step.index) * 65_537 + layout.rng_rank
            torch.manual_seed(dropout)
            found = _gradient(layout, module, parameters, step, loss_scale.value, dropout, beat, wishes)
            if not loss_scale.overflowed(found.loss, found.grad_norm, say):
                break
            layout.clear_gradients(module, optimizer)
        beat("update", step.index + 1)
        objection = health.objection(found.loss, found.grad_norm)
        if objection is None and found.weight:
            clip = min(1.0, max_grad_norm / (found.grad_norm + 1e-6)) if max_grad_norm else 1.0
            scale_gradients(parameters, found.scale * clip)
            optimizer.step()
            loss_scale.good()
        layout.clear_gradients(module, optimizer)

        seconds, waited = time.perf_counter() - asked, started - asked
        record(_result(step, found, learning_rate, seconds, waited))
        if record_gradients is not None:
            record_gradients(step.index + 1, found.squares.sqrt() * found.scale)
        if objection is not None:
            health.refuse(step, objection, found.loss, found.grad_norm)
        after_step(step.index + 1, found.wished)
        asked = time.perf_counter()
        beat("data", step.index + 2)


@dataclass(frozen=True)
class _Gradient:
    """What the micro-batches of all ranks add up to. The parameters hold the gradient itself, still to be scaled.

    loss, grad_norm: per unit of `weight`; scale: what gradients are multiplied by to be so too; squares: of each
    parameter's gradient, before that.
    """

    loss: float
    grad_norm: float
    weight: float
    scale: float
    tokens: int
    label_tokens: int
    squares: torch.Tensor
    wished: Wishes
    metrics: dict[str, float]


def _result(step: Step, found: _Gradient, learning_rate: float, seconds: float, waited: float) -> StepResult:
    sizes = found.tokens, found.label_tokens
    figures = found.loss, found.grad_norm, learning_rate, *sizes, seconds, waited, found.tokens / seconds
    return StepResult(step.index + 1, step.epoch, *figures, found.metrics)


def _gradient(
    layout: Layout,
    module: torch.nn.Module,
    parameters: Sequence[torch.nn.Parameter],
    step: Step,
    loss_scale: float,
    dropout: int,
    beat: Beat,
    wishes: Callable[[], Wishes],
) -> _Gradient:
    """Forward and backward of a step, and its sums over all ranks."""
    sums, metrics = _forward_backward(layout, module, step, loss_scale, dropout, beat)
    names = [(name, part) for name in sorted(metrics) for part in range(metrics[name].numel())]
    # The one small collective of a step besides the gradients, and its one wait for the device.
    beat("reduce", step.index + 1)
    loss_sum, weight, tokens, labels, *rest = layout.sum(
        *sums, *(metrics[n].view(-1)[i] for n, i in names), votes=wishes()
    )
    squares = gradient_squares(parameters)
    norm = squares.sum().sqrt()
    totals = torch.stack([loss_sum, weight, norm.to(loss_sum), tokens, labels, *rest]).tolist()
    # The wrapper averaged over ranks what must be summed over ranks and divided by the weight.
    scale = layout.averaged_over / totals[1] / loss_scale if totals[1] else 0.0
    loss = totals[0] / totals[1] if totals[1] else 0.0
    sizes, own = (int(totals[3]), int(totals[4])), dict(zip(names, totals[5:], strict=False))
    means = {name: mean([own[n, i] for n, i in names if n == name], totals[1]) for name in sorted(metrics)}
    wished = Wishes(*totals[5 + len(names) :])
    return _Gradient(loss, totals[2] * scale, totals[1], scale, *sizes, squares, wished, means)


def _forward_backward(
    layout: Layout, module: torch.nn.Module, step: Step, loss_scale: float, dropout: int, beat: Beat
) -> tuple[tuple[torch.Tensor, torch.Tensor, int, int], dict[str, torch.Tensor]]:
    """Gradients of the micro-batches of this rank, added up; returns loss sum, weight, tokens and labelled tokens, and the
    objective's metrics, whose names are the same on every rank."""
    sums = torch.zeros(2, dtype=torch.float64, device=layout.device)  # loss, weight
    metrics: dict[str, torch.Tensor] = {}
    tokens = label_tokens = 0
    seen: torch.Tensor | None = None
    if step.looked_at is not None:
        looking = partial(beat, "look", step.index + 1)
        seen = look(layout, module, step.looked_at, len(step.row_ids), looking, dropout)
    for number, batch in enumerate(step.micro_batches):
        if seen is not None:
            again(dropout, number)
        with layout.micro_batch(module, last=number == len(step.micro_batches) - 1):
            beat("forward", step.index + 1, number + 1)
            output = module(with_seen(batch, seen).to(layout.device))
            beat("backward", step.index + 1, number + 1)
            layout.accelerator.backward(output.loss_sum * loss_scale)
        sums += torch.stack([output.loss_sum.detach(), output.weight]).to(sums)
        for name, value in output.metrics.items():
            metrics[name] = metrics[name] + value.to(sums) if name in metrics else value.to(sums)
        tokens, label_tokens = tokens + batch.tokens, label_tokens + batch.label_tokens
    return (sums[0], sums[1], tokens, label_tokens), metrics
