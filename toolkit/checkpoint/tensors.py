"""The tensors of a run by name: weights, persistent buffers and optimizer state. Names, not ranks: any layout reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from toolkit.checkpoint.shards import quietly
from toolkit.errors import UserError

WEIGHT = "weights."
_STATE = "optimizer."


def run_tensors(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """What a step changes: `weights.NAME` and `optimizer.NAME.KEY`. Sharded ones stay sharded, nothing is copied.

    module: not wrapped by DDP. Where a part of the model is frozen, only what is trained: the rest is as it was loaded.
    """
    tensors = _weights(module)
    for parameter, name in _trained(module, optimizer).items():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{_STATE}{name}.{key}"] = value
    return tensors


def tensor_bytes(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of `run_tensors` over all ranks, also before the first step has made the optimizer's state."""
    group = optimizer.param_groups[0]
    moments = 2 if "betas" in group else int(bool(group.get("momentum")))
    weights = sum(t.numel() * t.element_size() for t in _weights(module).values())
    return weights + sum(moments * p.numel() * p.element_size() for p in _trained(module, optimizer))


def restore_tensors(folder: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Read weights and optimizer state of `folder` in place, each rank its own part.

    Raises UserError when the names or shapes there are not those of this model.
    """
    stored = stored_tensors(folder)
    wanted = _weights(module)
    _refuse_other_names(folder, wanted, stored)
    states: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
    for parameter, name in _trained(module, optimizer).items():
        prefix = f"{_STATE}{name}."
        state = states[parameter] = {}
        # A parameter that never got a gradient (an expert that was never chosen) has no state; nor has it here.
        for full in [key for key in stored if key.startswith(prefix) and "." not in key[len(prefix) :]]:
            size, dtype = stored[full].size, stored[full].properties.dtype
            like = parameter.detach()
            if size == like.shape:
                state[full[len(prefix) :]] = torch.zeros_like(like, dtype=dtype)
            else:
                state[full[len(prefix) :]] = torch.zeros(size, dtype=dtype, device=like.device)
            wanted[full] = state[full[len(prefix) :]]
    read_tensors(folder, wanted)
    for parameter, state in states.items():
        optimizer.state.pop(parameter, None)
        if state:
            optimizer.state[parameter] = state


def read_tensors(folder: Path, into: dict[str, torch.Tensor]) -> None:
    """Fill tensors from those of the same name in a checkpoint, in place; sharded ones take their part."""
    with quietly():
        dcp.load(into, storage_reader=HuggingFaceStorageReader(str(folder)))


def stored_tensors(folder: Path) -> Mapping[str, TensorStorageMetadata]:
    """Name, shape and dtype of every tensor in a checkpoint."""
    return HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata  # type: ignore[return-value]


def _weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    kept = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    if not frozen:
        # `state_dict` knows which buffers are persistent; of tied parameters one name is enough.
        buffers = {name for name, _ in module.named_buffers()}
        kept |= {name: value for name, value in module.state_dict().items() if name in buffers}
    return {WEIGHT + name: value for name, value in kept.items()}


def _trained(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, str]:
    names = {parameter: name for name, parameter in module.named_parameters()}
    return {parameter: names[parameter] for group in optimizer.param_groups for parameter in group["params"]}


def _refuse_other_names(
    folder: Path, wanted: Mapping[str, torch.Tensor], stored: Mapping[str, TensorStorageMetadata]
) -> None:
    there = {name for name in stored if name.startswith(WEIGHT)}
    shapes = [name for name in wanted.keys() & there if wanted[name].shape != stored[name].size]
    for what, names in (
        ("has no", wanted.keys() - there),
        ("has weights that this model does not train:", there - wanted.keys()),
        ("has other shapes of", shapes),
    ):
        if names:
            shown = ", ".join(name.removeprefix(WEIGHT) for name in sorted(names)[:3])
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UserError(f"resume: {folder} {what} {shown}{more}; it belongs to another model")
