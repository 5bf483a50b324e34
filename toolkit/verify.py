"""Did training change what it was to change and nothing else, and does a folder hold what was written?

A tensor is known again by its sum and the sum of its squares: two numbers, which an update of it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch.distributed.tensor import DTensor

from toolkit.errors import UserError
from toolkit.layout import Layout


class Changes:
    """What has changed in a model since this was made, which is before the first step and before a checkpoint is read."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._before = _marks(module)

    def tell(self, layout: Layout, module: torch.nn.Module, say: Callable[[str], None]) -> None:
        """Say how many trained tensors changed; warn if none or only some did, or if a frozen one did. All ranks call it."""
        trainable = {name for name, p in module.named_parameters() if p.requires_grad}
        names, now = list(self._before), _marks(module)
        if differing := _differing(layout, {name: now[name] for name in trainable}):
            say(
                f"warning: {len(differing)} trained tensors are not the same on all processes, the first: {differing[0]}; "
                "please report it"
            )
        here = torch.tensor([float(not torch.equal(self._before[name], now[name])) for name in names])
        changed = {name for name, count in zip(names, _over_ranks(layout, here), strict=True) if count}
        trained, moved = changed & trainable, sorted(changed - trainable)
        still = sorted(trainable - changed)
        if moved:
            say(
                f"warning: {len(moved)} frozen tensors are not as they were loaded, the first: {moved[0]}; please report it"
            )
        if still:
            what = "none" if not trained else f"{len(trained)}"
            say(
                f"warning: {what} of {len(trainable)} trained tensors changed since the start; unchanged: "
                f"{', '.join(still[:3])}{', ...' if len(still) > 3 else ''}"
            )
        else:
            say(
                f"verified: all {len(trainable)} trained tensors changed, all {len(names) - len(trainable)} others did not"
            )


def check_written(file: Path, expected: Mapping[str, torch.Size]) -> None:
    """Raises UserError unless a safetensors file holds exactly these tensors, in these shapes, none of them empty."""
    check_shapes(file.parent, written_shapes([file]), expected)


def written_shapes(files: list[Path]) -> dict[str, torch.Size]:
    """Names and shapes in safetensors files, by their headers."""
    found: dict[str, torch.Size] = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            found |= {name: torch.Size(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    return found


def check_shapes(folder: Path, found: Mapping[str, torch.Size], expected: Mapping[str, torch.Size]) -> None:
    """Raises UserError unless both are the same, and nothing is empty."""
    for what, names in (
        ("lacks", expected.keys() - found.keys()),
        ("has, in another shape,", {name for name in expected.keys() & found.keys() if expected[name] != found[name]}),
        ("has an empty", {name for name, shape in found.items() if not shape.numel()}),
        ("has, besides,", found.keys() - expected.keys()),
    ):
        if names:
            raise UserError(f"{folder}: what was written {what} {min(names)} ({len(names)} tensors in all)")


def _marks(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """[sum, sum of squares] of this rank's part of every parameter."""
    return {name: _mark(p.detach()) for name, p in module.named_parameters()}


def _mark(tensor: torch.Tensor) -> torch.Tensor:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    if not local.is_floating_point():
        local = local.view(torch.uint8).float() if local.dtype != torch.int8 else local.float()
    mark = _sums(local)
    # 4-bit weights may be stored in numbers that stand for nothing, some of them infinite or none at all.
    return mark if mark.isfinite().all() else _sums(torch.nan_to_num(local, 0.0, 0.0, 0.0))


def _sums(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.float32 if tensor.device.type == "mps" else torch.float64
    return torch.stack([tensor.sum(dtype=wide), torch.linalg.vector_norm(tensor, dtype=torch.float32).to(wide)]).cpu()


def refuse_different_starts(layout: Layout, module: torch.nn.Module) -> None:
    """Raises UserError when what is to be trained, and was made on every process, is not the same on all of them."""
    marks = {name: _mark(p.detach()) for name, p in module.named_parameters() if p.requires_grad}
    if differing := _differing(layout, marks, whole=True):
        raise UserError(
            f"adapter: the processes made different starting values of {differing[0]}; are libraries and the base model the "
            "same on every node?"
        )


def _differing(layout: Layout, marks: Mapping[str, torch.Tensor], *, whole: bool = False) -> list[str]:
    """Names of tensors that are not the same on all processes; none where processes hold parts, unless all are `whole`."""
    if layout.accelerator.num_processes == 1 or (layout.is_fsdp and not whole):
        return []
    every = layout.gather_objects([{name: mark.tolist() for name, mark in marks.items()}])
    return sorted(name for name in every[0] if any(other.get(name) != every[0][name] for other in every))


def _over_ranks(layout: Layout, counts: torch.Tensor) -> list[float]:
    return [sum(parts) for parts in zip(*layout.gather_objects([counts.tolist()]), strict=True)]
