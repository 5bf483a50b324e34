"""What is done to the repeated blocks of a model: compiled, or computed again in backward."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from toolkit.errors import UserError


def compile_blocks(model: PreTrainedModel, backend: str, mode: str | None) -> int:
    """Compile each repeated block in place, once for all of them; returns how many there are.

    In place, since a wrapper would rename the parameters. Lengths are dynamic: micro-batches differ in theirs, and would
    otherwise be compiled one by one. Raises UserError for a model that does not name its blocks.
    """
    blocks = _blocks(model)
    if not blocks:
        raise UserError(f"dynamo_config: {type(model).__name__} does not name its repeated blocks; remove the section")
    for block in blocks:
        block.compile(backend=backend, mode=mode, dynamic=True)
    return len(blocks)


def recompute_activations(model: PreTrainedModel) -> None:
    """Keep the input of each block only, and compute what is inside again in backward, with the same random numbers."""
    model.gradient_checkpointing_enable({"use_reentrant": False})


def _blocks(model: PreTrainedModel) -> list[torch.nn.Module]:
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]
