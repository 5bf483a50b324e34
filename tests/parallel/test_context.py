"""A micro-batch that is cut over devices: nothing lost, nothing twice, and rows keep their borders."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from toolkit.data.collate import IGNORE, collate
from toolkit.data.tokens import TokenRows
from toolkit.parallel.context import cut_sequence

ROWS = TokenRows.build([([5, 6, 7, 8, 9], [-100, -100, 7, 8, 9]), ([3, 4], [3, 4]), ([1, 2, 3, 4], [-100, 2, 3, 4])])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_the_parts_are_the_whole(size: int) -> None:
    whole = collate(ROWS, np.arange(3), padding_free=True, pad_token_id=0)  # 11 tokens
    parts = [cut_sequence(whole, rank, size, pad_token_id=0) for rank in range(size)]
    assert {part.input_ids.shape for part in parts} == {(1, -(-11 // size))}
    for name, fill in (("input_ids", 0), ("targets", IGNORE)):
        joined = torch.cat([getattr(part, name) for part in parts], dim=1)
        assert torch.equal(joined[:, :11], getattr(whole, name))
        assert (joined[:, 11:] == fill).all()
    filling = torch.arange(-11 % size)[None]
    assert torch.equal(
        torch.cat([p.position_ids for p in parts], dim=1), torch.cat([whole.position_ids, filling], dim=1)
    )
    assert sum(part.tokens for part in parts) == 11
    assert sum(part.label_tokens for part in parts) == whole.label_tokens == 7
    for part in parts:
        assert part.label_tokens == int((part.targets != IGNORE).sum())
        assert part.sequence_lengths == [5, 2, 4] + [-11 % size] * bool(-11 % size)
        assert part.cu_seq_lens.tolist() == np.cumsum([0, *part.sequence_lengths]).tolist()
        assert sum(part.sequence_lengths) == size * part.input_ids.shape[1]


def test_a_filler_weighs_nothing_on_any_device() -> None:
    filler = collate(ROWS, np.arange(0), padding_free=True, pad_token_id=0)
    for rank in range(4):
        part = cut_sequence(filler, rank, 4, pad_token_id=0)
        assert (part.tokens, part.label_tokens, part.input_ids.shape) == (0, 0, (1, 1))
