"""From a model on the host to the module and the optimizer that the loop trains, spread as the layout says."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from toolkit.config import TrainConfig
from toolkit.layout import Layout
from toolkit.objectives import Objective, ObjectiveModule
from toolkit.optim import build_optimizer
from toolkit.parallel.blocks import compile_blocks, recompute_activations
from toolkit.parallel.choices import Choices
from toolkit.parallel.compression import compress_gradients
from toolkit.parallel.context import split_attention
from toolkit.parallel.loading import complete_sharding


def spread(
    layout: Layout, model: PreTrainedModel, objective: Objective, config: TrainConfig
) -> tuple[ObjectiveModule, torch.optim.Optimizer]:
    """The wrapped module (DDP, FSDP2, ...) and the optimizer over its trainable parameters."""
    choices = layout.choices
    if choices.context > 1:
        model.set_attn_implementation(split_attention(str(model.config._attn_implementation), layout.context_group()))
    if choices.activation_checkpointing:
        recompute_activations(model)
    if choices.compile_backend is not None:
        compile_blocks(model, choices.compile_backend, choices.compile_mode)
    module = ObjectiveModule(model, objective, autocast=_own_autocast(choices))
    if choices.sharded_loading:
        complete_sharding(module, model)
        return module, build_optimizer(module, config)
    optimizer = build_optimizer(module, config)
    wrapped, optimizer = layout.accelerator.prepare(module, optimizer)
    if choices.comm_hook != "no" and isinstance(wrapped, DistributedDataParallel):
        compress_gradients(wrapped, choices)
    return wrapped, optimizer


def _own_autocast(choices: Choices) -> torch.dtype | None:
    """Where no wrapper computes in the layout's precision, the module itself does."""
    if choices.mixed_precision == "fp16":
        return torch.float16
    alone = choices.tensor > 1 and choices.shard * choices.replicate == 1
    return torch.bfloat16 if alone and choices.mixed_precision == "bf16" else None
