"""The true global gradient norm, also where gradients are sharded, and scaling in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate

# Squares are summed in fp32 within blocks of this many numbers and in fp64 across them. A plain fp32 sum over the 28
# million numbers of one embedding is off by 1e-3 on CPUs, and by another amount when it is sharded.
_BLOCK = 4096


def global_norm(parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    """Euclidean norm `[]` of all gradients together, in fp64 where the device has it.

    Gradients may be plain tensors or sharded over one or more device meshes; each mesh needs one small collective.
    """
    squares: dict[tuple, tuple[DTensor | None, list[torch.Tensor]]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if isinstance(gradient, DTensor):
            key = (gradient.device_mesh, gradient.placements)
            squares.setdefault(key, (gradient, []))[1].append(_square(gradient.to_local()))
        else:
            squares.setdefault((), (None, []))[1].append(_square(gradient))
    totals = []
    for example, parts in squares.values():
        total = torch.stack(parts).sum()
        if example is not None:
            # What is sharded along a mesh dimension is summed over it; what is replicated counts once.
            pieces = [Replicate() if p.is_replicate() else Partial() for p in example.placements]
            # Offloaded gradients lie on the host, out of reach of the mesh's collectives.
            total = total.to(example.device_mesh.device_type)
            total = DTensor.from_local(total, example.device_mesh, pieces, run_check=False).full_tensor()
        totals.append(total)
    return torch.stack(totals).sum().sqrt() if totals else torch.zeros(())


def scale_gradients(parameters: Sequence[torch.nn.Parameter], factor: float) -> None:
    """Multiply all gradients by `factor`, in place."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    torch._foreach_mul_([g.to_local() if isinstance(g, DTensor) else g for g in gradients], factor)


def _square(gradient: torch.Tensor) -> torch.Tensor:
    flat = gradient.detach().reshape(-1)
    whole = flat.numel() // _BLOCK * _BLOCK
    wide = torch.float32 if flat.device.type == "mps" else torch.float64
    blocks = torch.linalg.vector_norm(flat[:whole].view(-1, _BLOCK), dim=1, dtype=torch.float32).to(wide)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float32).to(wide)
    return blocks.square().sum() + rest.square()
