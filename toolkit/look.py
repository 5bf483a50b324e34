"""A first look at all rows of a global batch, for losses in which a row is compared with the others.

Without gradients, and shared over all ranks; what was seen then comes with each micro-batch of the second pass, so that the
loss does not depend on how the batch was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from toolkit.data.collate import MicroBatch
from toolkit.layout import Layout


def look(
    layout: Layout,
    module: torch.nn.Module,
    batches: Sequence[MicroBatch],
    rows: int,
    beat: Callable[[], None],
    seed: int | None = None,
) -> torch.Tensor:
    """[rows, any number] fp32: what the objective's `look` finds in the rows of a global batch, the same on every rank.

    batches: this rank's share, each with the `places` of its rows. seed: of the dropout, so that the second pass can repeat it.
    """
    found: torch.Tensor | None = None
    with torch.no_grad():
        for number, batch in enumerate(batches):
            if seed is not None:
                again(seed, number)
            beat()
            values = module(batch.to(layout.device), True).float()
            if found is None:
                found = torch.zeros(rows, values.shape[1], device=layout.device)
            if batch.rows:
                found[batch.known.places.to(layout.device)] = values  # type: ignore[union-attr, index]
    layout.shard_again(module)
    assert found is not None, "every rank has a micro-batch, be it a filler"
    return layout.total(found)


def again(seed: int, number: int) -> None:
    """Dropout of micro-batch `number`, the same in both passes."""
    torch.manual_seed((seed * 4099 + number) % 2**63)


def with_seen(batch: MicroBatch, seen: torch.Tensor | None) -> MicroBatch:
    """`batch`, and what was seen of the whole global batch."""
    return batch if seen is None else replace(batch, known=batch.known.but(seen=seen))
