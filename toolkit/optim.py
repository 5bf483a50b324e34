"""Optimizer groups, the learning rate of every step, and the rule that scales it with the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from toolkit.config import TrainConfig
from toolkit.errors import UserError


def scaled_learning_rate(config: TrainConfig) -> float:
    """The peak rate after `learning_rate_scaling`.

    linear: rate x batch / base batch (Goyal et al. 2017); sqrt: rate x sqrt(batch / base batch) (Krizhevsky 2014).
    """
    base = config.learning_rate_base_batch_size
    if config.learning_rate_scaling == "none":
        if base is not None:
            raise UserError(
                "train.learning_rate_base_batch_size is set but train.learning_rate_scaling is none; "
                "set it to linear or sqrt, or remove the base"
            )
        return config.learning_rate
    if base is None:
        raise UserError(
            f"train.learning_rate_scaling: {config.learning_rate_scaling} needs train.learning_rate_base_batch_size, "
            "the batch size that train.learning_rate was tuned at"
        )
    ratio = config.global_batch_size / base
    return config.learning_rate * (ratio if config.learning_rate_scaling == "linear" else math.sqrt(ratio))


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a function of the optimizer step, so that resuming needs no state.

    With w warm-up steps, update k (from 0) uses peak x (k + 1) / w while k < w, then with p = (k - w) / (total - w):
    linear peak x (1 - p), cosine peak x (1 + cos(pi p)) / 2, constant peak. No update has rate 0 unless the peak is 0.
    """

    peak: float
    total_steps: int
    warmup_steps: int
    shape: str

    def __call__(self, step: int) -> float:
        """Learning rate of update `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        if self.shape == "linear":
            return self.peak * (1.0 - progress)
        if self.shape == "cosine":
            return self.peak * 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.peak


def build_schedule(config: TrainConfig, total_steps: int, warn: Callable[[str], None]) -> Schedule:
    """Resolve warm-up; `warn` is called when the peak is never reached."""
    if config.warmup_ratio > 1.0:
        raise UserError(f"train.warmup_ratio: {config.warmup_ratio:g} is more than the whole run; at most 1")
    if config.warmup_steps is not None and config.warmup_ratio > 0:
        raise UserError("train.warmup_steps and train.warmup_ratio are both set; keep one")
    warmup = config.warmup_steps
    if warmup is None:
        # Rounded up, so that a small share of few steps is one step rather than none.
        warmup = math.ceil(round(config.warmup_ratio * total_steps, 6))
    if warmup > total_steps:
        warn(
            f"warm-up of {warmup} steps is longer than the run of {total_steps}: the peak learning rate is never reached"
        )
    return Schedule(scaled_learning_rate(config), total_steps, warmup, config.schedule)


def build_optimizer(module: torch.nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer over all trainable parameters: matrices decay, norms and biases (one dimension) never do."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    rate = scaled_learning_rate(config)
    fused = all(p.device.type in ("cpu", "cuda", "xpu", "mps") for p in trainable)
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, fused=fused)
    betas = (config.adam_beta1, config.adam_beta2)
    return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=config.adam_epsilon, fused=fused)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group the rate of this step."""
    for group in optimizer.param_groups:
        group["lr"] = rate
