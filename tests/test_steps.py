"""What one device is given at once when the recipe says so, and when it does not."""

from __future__ import annotations

import pytest

from toolkit.config import TrainConfig
from toolkit.data.tokens import TokenRows
from toolkit.errors import UserError
from toolkit.steps import device_capacity


def rows(*lengths: int) -> TokenRows:
    return TokenRows.build([([5] * n, [5] * n) for n in lengths])


@pytest.mark.parametrize(("device", "longest", "tokens"), [("cpu", 10, 1024), ("cpu", 3000, 3000), ("cuda", 10, 4096)])
def test_the_default_is_printed_and_always_holds_the_longest_row(device: str, longest: int, tokens: int) -> None:
    capacity, said = device_capacity(TrainConfig(), longest, 64, device)
    assert (capacity.max_tokens, capacity.max_rows) == (tokens, None)
    assert f"at most {tokens} tokens (default; train.max_tokens_per_micro_batch" in said


def test_what_the_recipe_says_holds_alone() -> None:
    capacity, said = device_capacity(TrainConfig(micro_batch_size=2), 3, 64, "cpu")
    assert (capacity.max_tokens, capacity.max_rows, said) == (None, 2, "at most 2 rows")
    capacity, said = device_capacity(TrainConfig(max_tokens_per_micro_batch=50), 3, 64, "cpu")
    assert (capacity.max_tokens, capacity.max_rows, said) == (50, None, "at most 50 tokens")


def test_a_row_longer_than_a_micro_batch_is_an_error_that_says_both_numbers() -> None:
    with pytest.raises(UserError, match=r"max_tokens_per_micro_batch: 50 is less than the longest row \(51 tokens\)"):
        device_capacity(TrainConfig(max_tokens_per_micro_batch=50), 51, 64, "cpu")
