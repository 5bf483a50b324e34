"""The product of hidden states with the vocabulary matrix, a chunk of positions at a time: the full `[seq, vocabulary]` logits
never exist. What each loss makes of a chunk's logits is its own affair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional

Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


class HeadProduct:
    """logits = hidden @ weight^T + bias, in the dtype that autocast or the weight says, and the gradients of the three.

    For use inside an autograd function, which says by `needs` of which of hidden, weight and bias gradients are wanted.
    Their sums are fp32, and zeros, not None, where there is no position: sharded layouts reduce the same on all ranks.
    """

    def __init__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        needs: Sequence[bool] = (False, False, False),
        compute: torch.dtype | None = None,
    ) -> None:
        self.compute = compute or product_dtype(hidden, weight)
        self._hidden = hidden
        self._matrix, self._bias = weight.to(self.compute), None if bias is None else bias.to(self.compute)
        self._grad_hidden = torch.empty_like(hidden) if needs[0] else None
        self._grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needs[1] else None
        self._grad_bias = torch.zeros_like(bias, dtype=torch.float32) if needs[2] and bias is not None else None

    def chunks(self, held: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """(positions, their raw logits), of at most `held` bytes in the precision of the product."""
        positions = self._hidden.shape[0]
        size = max(1, held // (self._matrix.shape[0] * self._matrix.element_size()))
        for start in range(0, positions, size):
            part = slice(start, min(start + size, positions))
            yield part, functional.linear(self._rows(part), self._matrix, self._bias)

    def add(self, part: slice, gradient: torch.Tensor) -> None:
        """Take in the gradient of a chunk's raw logits."""
        if self._grad_hidden is not None:
            self._grad_hidden[part] = gradient @ self._matrix
        if self._grad_bias is not None:
            self._grad_bias += gradient.sum(0, dtype=torch.float32)
        if self._grad_weight is not None and self.compute == torch.float32:
            self._grad_weight.addmm_(gradient.T, self._rows(part))
        elif self._grad_weight is not None:
            self._grad_weight += gradient.T @ self._rows(part)

    @property
    def gradients(self) -> Gradients:
        """Of hidden, weight and bias, each None unless it was wanted."""
        return self._grad_hidden, self._grad_weight, self._grad_bias

    def _rows(self, part: slice) -> torch.Tensor:
        return self._hidden[part].to(self.compute)


def product_dtype(hidden: torch.Tensor, weight: torch.Tensor) -> torch.dtype:
    """What the product is computed in here and now; inside `backward` autocast is off."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def scaled(gradients: Gradients, outer: torch.Tensor) -> Gradients:
    """Gradients that were made in forward, times that of the loss sum. In place, and not in its dtype: a loss scale of 2^16 is
    infinite in fp16."""
    hidden, weight, bias = (None if gradient is None else gradient.mul_(outer) for gradient in gradients)
    return hidden, weight, bias
