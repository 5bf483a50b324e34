"""Sizes in tokens become those in rows and steps; what contradicts itself is said."""

from __future__ import annotations

import pytest

from recipes.pretrain import PretrainingConfig
from toolkit.errors import UserError
from toolkit.parsing import parse
from toolkit.token_units import in_rows_and_steps


def config(*arguments: str) -> PretrainingConfig:
    return parse(PretrainingConfig, ["--data.max_length", "256", *arguments])


def test_tokens_become_rows_and_steps() -> None:
    found = config(
        "--pretrain.global_batch_tokens", "4096", "--pretrain.max_tokens", "1000000", "--pretrain.warmup_tokens", "8193"
    )
    said = in_rows_and_steps(found, found.pretrain)
    assert found.train.global_batch_size == 16
    assert found.train.max_steps == 245  # 244.14 rounded up
    assert found.train.warmup_steps == 3  # 2.0002 rounded up
    assert len(said) == 3
    assert "245 of up to 4,096 tokens" in said[1]


def test_without_tokens_nothing_is_changed() -> None:
    found = config("--train.global_batch_size", "5", "--train.max_steps", "7")
    assert in_rows_and_steps(found, found.pretrain) == []
    assert (found.train.global_batch_size, found.train.max_steps, found.train.warmup_steps) == (5, 7, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--pretrain.global_batch_tokens", "4000"), "4,000 is not a whole number of blocks.*nearest is 4,096"),
        (
            ("--pretrain.global_batch_tokens", "4096", "--train.global_batch_size", "16"),
            "train.global_batch_size.*keep one",
        ),
        (("--pretrain.max_tokens", "4096", "--train.epochs", "2"), r"max_tokens \(the command line\) and train.epochs"),
        (("--pretrain.warmup_tokens", "0", "--train.warmup_ratio", "0.1"), "train.warmup_ratio.*keep one"),
    ],
)
def test_two_owners_and_uneven_sizes_are_refused(arguments: tuple[str, ...], words: str) -> None:
    found = config(*arguments)
    with pytest.raises(UserError, match=words):
        in_rows_and_steps(found, found.pretrain)
