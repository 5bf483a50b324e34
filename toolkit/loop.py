"""The training loop, the only place that calls backward, clips and steps. One optimizer step reads top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from toolkit.errors import NumericalError
from toolkit.gradients import global_norm, scale_gradients
from toolkit.layout import Layout
from toolkit.optim import Schedule, set_learning_rate
from toolkit.steps import Step


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step reports; the fields are the keys of metrics.jsonl.

    step: counted from 1; epoch: passes over the data so far; loss: per unit of weight (labelled token) over the whole
    global batch; grad_norm: global, before clipping; learning_rate: the one used; tokens, label_tokens: real tokens of
    the global batch, and those that carried loss; seconds: wall time of the step.
    """

    step: int
    epoch: float
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    label_tokens: int
    seconds: float
    tokens_per_second: float


def train(
    layout: Layout,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: Iterable[Step],
    *,
    schedule: Schedule,
    max_grad_norm: float,
    seed: int,
    record: Callable[[StepResult], None],
    after_step: Callable[[int], None],
) -> None:
    """Run the optimizer steps. `record` gets each step's result, then `after_step` (evaluate, save, stop) its number.

    The gradient is that of (sum of losses) / (sum of weights) over the whole global batch, however many ranks and
    micro-batches it was cut into. Raises NumericalError before an update with a non-finite loss or gradient.
    """
    # The optimizer's parameters, not the module's: after a forward, FSDP2 may show gathered ones that get no gradient.
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    module.train()
    for step in steps:
        started = time.perf_counter()
        learning_rate = schedule(step.index)
        set_learning_rate(optimizer, learning_rate)
        # Dropout is a function of (seed, step, rank), so that a resumed run draws what the uninterrupted one drew.
        torch.manual_seed((seed * 1_000_003 + step.index) * 65_537 + layout.dp_rank)

        sums = torch.zeros(2, dtype=torch.float64, device=layout.device)  # loss, weight
        tokens = label_tokens = 0
        for number, batch in enumerate(step.micro_batches):
            with layout.micro_batch(module, last=number == len(step.micro_batches) - 1):
                output = module(batch.to(layout.device))
                layout.accelerator.backward(output.loss_sum)
            sums += torch.stack([output.loss_sum.detach(), output.weight]).to(sums)
            tokens, label_tokens = tokens + batch.tokens, label_tokens + batch.label_tokens

        # The one small collective of a step besides the gradients, and its one wait for the device.
        loss_sum, weight, all_tokens, all_labels = layout.sum(sums[0], sums[1], tokens, label_tokens)
        norm = global_norm(parameters)
        totals = torch.stack([loss_sum, weight, all_tokens, all_labels, norm.to(loss_sum)]).tolist()
        # The wrapper averaged over ranks what must be summed over ranks and divided by the weight.
        scale = layout.dp_size / totals[1] if totals[1] else 0.0
        loss, grad_norm = (totals[0] / totals[1] if totals[1] else 0.0), totals[4] * scale
        finite = math.isfinite(loss) and math.isfinite(grad_norm)
        if finite and totals[1]:
            clip = min(1.0, max_grad_norm / (grad_norm + 1e-6)) if max_grad_norm else 1.0
            scale_gradients(parameters, scale * clip)
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)

        seconds, counts = time.perf_counter() - started, (int(totals[2]), int(totals[3]))
        speed = counts[0] / seconds
        record(StepResult(step.index + 1, step.epoch, loss, grad_norm, learning_rate, *counts, seconds, speed))
        if not finite:
            raise NumericalError(_explain(step, loss, grad_norm))
        after_step(step.index + 1)


def _explain(step: Step, loss: float, grad_norm: float) -> str:
    what = "loss" if not math.isfinite(loss) else "gradient"
    rows = step.row_ids.tolist()
    shown = ", ".join(map(str, rows[:32])) + (f", ... ({len(rows)} rows)" if len(rows) > 32 else "")
    return (
        f"non-finite {what} at step {step.index + 1}, before the update: loss {loss}, grad_norm {grad_norm}, "
        f"training rows [{shown}]; the weights are those of step {step.index}. "
        "Look at these rows, lower train.learning_rate, or lengthen the warm-up"
    )
