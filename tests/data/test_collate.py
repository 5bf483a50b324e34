"""A micro-batch learns the same (token, target) pairs however it is laid out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from toolkit.data.collate import MicroBatch, collate, row_borders
from toolkit.data.tokens import TokenRows

ROWS = TokenRows.build([([11, 12, 13, 14], [-100, -100, 13, 14]), ([21, 22], [-100, 22]), ([31, 32, 33], [31, 32, 33])])


def batch(ids: list[int], padding_free: bool) -> MicroBatch:
    return collate(ROWS, np.array(ids, dtype=int), padding_free=padding_free, pad_token_id=0)


def test_rows_end_to_end_with_targets_shifted_inside_each_row() -> None:
    free = batch([0, 1, 2], padding_free=True)
    assert free.input_ids.tolist() == [[11, 12, 13, 14, 21, 22, 31, 32, 33]]
    assert free.targets.tolist() == [[-100, 13, 14, -100, 22, -100, 32, 33, -100]]
    assert free.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 0, 1, 2]]
    assert free.sequence_lengths == [4, 2, 3]
    assert row_borders(free) == [(0, 4), (4, 6), (6, 9)]
    assert (free.tokens, free.label_tokens) == (9, 5)
    assert free.attention_mask is None


def test_padded_rows_are_masked_on_the_right() -> None:
    padded = batch([1, 0], padding_free=False)
    assert padded.input_ids.tolist() == [[21, 22, 0, 0], [11, 12, 13, 14]]
    assert padded.targets.tolist() == [[22, -100, -100, -100], [-100, 13, 14, -100]]
    assert padded.position_ids.tolist() == [[0, 1, 0, 0], [0, 1, 2, 3]]
    assert padded.attention_mask is not None
    assert padded.attention_mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert (padded.tokens, padded.label_tokens) == (6, 3)


def pairs(micro: MicroBatch) -> Counter:
    chosen = micro.labelled
    flat = (part[chosen].tolist() for part in (micro.input_ids, micro.position_ids, micro.targets))
    return Counter(zip(*flat, strict=True))


def test_both_layouts_carry_the_same_pairs() -> None:
    free, padded = batch([2, 0, 1], padding_free=True), batch([2, 0, 1], padding_free=False)
    assert pairs(free) == pairs(padded)
    assert pairs(free) == Counter([(12, 1, 13), (13, 2, 14), (21, 0, 22), (31, 0, 32), (32, 1, 33)])


@pytest.mark.parametrize("padding_free", [True, False])
def test_a_filler_weighs_nothing_and_still_has_a_shape(padding_free: bool) -> None:
    filler = batch([], padding_free)
    assert (filler.tokens, filler.label_tokens) == (0, 0)
    assert filler.input_ids.shape == (1, 2)
    assert not filler.labelled.any()


@pytest.mark.parametrize("padding_free", [True, False])
def test_the_models_inputs_have_the_fields_names(padding_free: bool) -> None:
    inputs = batch([0, 1], padding_free).model_inputs()
    if padding_free:
        assert inputs["cu_seq_lens_q"].tolist() == [0, 4, 6]
        assert inputs["cu_seq_lens_k"].dtype == torch.int32
        assert (inputs["max_length_q"], inputs["max_length_k"]) == (4, 4)
    else:
        assert set(inputs) == {"input_ids", "position_ids", "attention_mask"}


def test_moving_keeps_everything() -> None:
    moved = batch([0, 1], padding_free=True).to(torch.device("meta"))
    assert moved.targets.device.type == "meta"
    assert (moved.tokens, moved.sequence_lengths) == (6, [4, 2])
