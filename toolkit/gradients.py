"""The true norm of every gradient, also where it is sharded, and scaling in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial

# Squares are summed in fp32 within blocks of this many numbers and in fp64 across them. A plain fp32 sum over the 28
# million numbers of one embedding is off by 1e-3 on CPUs, and by another amount when it is sharded.
_BLOCK = 4096


def gradient_squares(parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    """Squared Euclidean norm of each parameter's whole gradient, `[parameters]`, in fp64 where the device has it.

    Gradients may be plain tensors or sharded over one or more device meshes; each mesh needs one small collective per
    dimension, however many parameters there are. A parameter without a gradient has 0.
    """
    squares: dict[int, torch.Tensor] = {}
    meshes: dict[DeviceMesh, list[int]] = {}
    for index, parameter in enumerate(parameters):
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            squares[index] = _square(gradient.to_local()) * _counts_here(gradient)
            meshes.setdefault(gradient.device_mesh, []).append(index)
        elif gradient is not None:
            squares[index] = _square(gradient)
    for mesh, indices in meshes.items():
        # Offloaded gradients lie on the host, out of reach of the mesh's collectives.
        part = torch.stack([squares[index] for index in indices]).to(mesh.device_type)
        whole = DTensor.from_local(part, mesh, [Partial()] * mesh.ndim, run_check=False).full_tensor()
        for index, square in zip(indices, whole.unbind(), strict=True):
            squares[index] = square
    like = next(iter(squares.values()), torch.zeros(()))
    return torch.stack(
        [squares[i].to(like) if i in squares else torch.zeros_like(like) for i in range(len(parameters))]
    )


def _counts_here(gradient: DTensor) -> float:
    """1 on the ranks whose parts are to be added up: what is replicated along a mesh dimension counts once there."""
    place = gradient.device_mesh.get_coordinate()
    assert place is not None
    return float(not any(p.is_replicate() and at for p, at in zip(gradient.placements, place, strict=True)))


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
