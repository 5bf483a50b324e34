"""Sizes of a mesh that a model cannot be split by are refused before a weight is read."""

from __future__ import annotations

import pytest
from transformers import GPT2Config, LlamaConfig

from toolkit.errors import UserError
from toolkit.parallel.context import check_context_parallel
from toolkit.parallel.loading import check_tensor_parallel

LLAMA = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 36,
    "num_attention_heads": 12,
    "num_key_value_heads": 6,
}


def test_tensor_parallel_sizes_divide_what_they_split() -> None:
    check_tensor_parallel(LlamaConfig(**LLAMA), 6)
    for changes, name in (
        ({"num_attention_heads": 16}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"intermediate_size": 37}, "intermediate_size"),
        ({"vocab_size": 97}, "vocab_size"),
    ):
        with pytest.raises(UserError, match=rf"tp_size: 6 does not divide {name} of llama, which is"):
            check_tensor_parallel(LlamaConfig(**{**LLAMA, **changes}), 6)


def test_a_family_without_a_plan_hears_which_have_one() -> None:
    with pytest.raises(UserError, match=r"gpt2 has no tensor-parallel plan.*\bllama\b.*\bmistral\b.*\bqwen3\b"):
        check_tensor_parallel(GPT2Config(), 2)


@pytest.mark.parametrize(("heads", "kv_heads", "size", "fits"), [
    (12, 6, 2, True), (12, 6, 12, True), (12, 6, 4, False), (12, 6, 5, False), (9, 3, 3, True), (9, 3, 2, False),
    (8, 2, 8, True),
])  # fmt: skip
def test_context_parallel_sizes_share_the_heads(heads: int, kv_heads: int, size: int, fits: bool) -> None:
    config = LlamaConfig(hidden_size=heads * 8, num_attention_heads=heads, num_key_value_heads=kv_heads)
    if fits:
        check_context_parallel(config, size, padding_free=True)
        with pytest.raises(UserError, match=r"train\.padding_free: true"):
            check_context_parallel(config, size, padding_free=False)
    else:
        with pytest.raises(UserError, match=rf"{size} devices cannot share {heads} attention heads and {kv_heads}"):
            check_context_parallel(config, size, padding_free=True)
