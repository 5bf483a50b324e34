"""A vocabulary matrix that is split over tensor-parallel ranks, each of which makes the logits of its own tokens only.

The softmax needs two numbers per position from the other ranks, never their logits:
log sum_v exp(logit_v) = log sum_r exp(log sum_{v on r} exp(logit_v)), and the target's logit from the rank that has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard


@dataclass(frozen=True)
class VocabularyShard:
    """The tokens start..start + size - 1 are this rank's; `group` holds all."""

    group: dist.ProcessGroup
    start: int
    size: int

    @staticmethod
    def of(weight: torch.Tensor) -> VocabularyShard | None:
        """How the vocabulary matrix `[vocabulary, hidden]` is split; None when this rank has all of it."""
        if not isinstance(weight, DTensor):
            return None
        assert weight.placements == (Shard(0),), f"a vocabulary matrix as {weight.placements} is not known"
        size = weight.to_local().shape[0]
        assert size * weight.device_mesh.size() == weight.shape[0], (
            "checked before loading: sizes divide the vocabulary"
        )
        return VocabularyShard(weight.device_mesh.get_group(), weight.device_mesh.get_local_rank() * size, size)

    @property
    def vocabulary(self) -> int:
        """Tokens of all ranks."""
        return self.size * dist.get_world_size(self.group)

    def local_targets(self, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Targets `[positions, 1]` as indices into this rank's tokens (0 where they are elsewhere), and which are here."""
        local = targets - self.start
        here = (local >= 0) & (local < self.size)
        return local.where(here, 0), here

    def log_normalizer(self, local: torch.Tensor) -> torch.Tensor:
        """log sum exp over the whole vocabulary from that over this rank's tokens, `[positions]` fp32 both."""
        return self._gather(local).logsumexp(0)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in place."""
        dist.all_reduce(values, group=self.group)
        return values

    def best(self, values: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Token `[positions]` of the largest logit of all, the first of equals, from each rank's largest and its index."""
        ranks = self._gather(values).argmax(0, keepdim=True)
        return self._gather(tokens + self.start).gather(0, ranks)[0]

    def _gather(self, values: torch.Tensor) -> torch.Tensor:
        gathered = [torch.empty_like(values) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(gathered, values.contiguous(), group=self.group)
        return torch.stack(gathered)
