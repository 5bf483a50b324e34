"""How fast this rank's device multiplies matrices: what a training step is made of."""

from __future__ import annotations

import time

import torch

_SECONDS = 0.5
_SIZES = {"cpu": 1024}
_ACCELERATOR_SIZE = 8192


def matmul_flops(device: torch.device, dtype: torch.dtype, seconds: float = _SECONDS) -> float:
    """Floating-point operations per second, 2 n³ for a product of two n x n matrices, over about `seconds`."""
    n = _SIZES.get(device.type, _ACCELERATOR_SIZE)
    a, b = (torch.rand((n, n), device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    once = max(_time(a, b, out, 2, device), 1e-9)
    products = max(2, min(2000, int(seconds / once)))
    return 2 * n**3 / _time(a, b, out, products, device)


def _time(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, products: int, device: torch.device) -> float:
    """Seconds of one product, the mean of some after a first."""
    torch.mm(a, b, out=out)
    _finish(device)
    started = time.perf_counter()
    for _ in range(products):
        torch.mm(a, b, out=out)
    _finish(device)
    return (time.perf_counter() - started) / products


def _finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
