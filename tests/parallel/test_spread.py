"""What a layout does to the blocks of a model is really done, and changes nothing that is learned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import toolkit.attention
from toolkit.config import TrainConfig
from toolkit.data.collate import collate
from toolkit.data.tokens import TokenRows
from toolkit.errors import UserError
from toolkit.layout import Layout, build_layout
from toolkit.objectives.causal_lm import CausalLanguageModeling
from toolkit.parallel.blocks import compile_blocks
from toolkit.parallel.choices import Choices
from toolkit.parallel.spread import spread

ROWS = TokenRows.build([([5, 6, 7, 8, 9], [5, 6, 7, 8, 9]), ([3, 4, 5], [3, 4, 5]), ([1] * 11, [1] * 11)])


@pytest.fixture(scope="module")
def layout() -> Layout:
    return build_layout()


def model(dropout: float = 0.0):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        initializer_range=0.2, attention_dropout=dropout,
    )  # fmt: skip
    made = AutoModelForCausalLM.from_config(config)
    made.set_attn_implementation(toolkit.attention.ISOLATED)
    return made


def gradients(layout: Layout, choices: Choices, dropout: float = 0.0) -> tuple[list[torch.Tensor], list[int]]:
    """Of one micro-batch, and how often each block's MLP ran."""
    made = model(dropout)
    module, _ = spread(replace(layout, choices=choices), made, CausalLanguageModeling(), TrainConfig())
    calls = [0] * 3
    for index, layer in enumerate(made.model.layers):

        def count(*_: object, index: int = index) -> None:
            calls[index] += 1

        # Before it runs: computed again, a block stops as soon as backward has what it needs.
        layer.mlp.register_forward_pre_hook(count)
    module.train()
    torch.manual_seed(1)
    batch = collate(ROWS, np.arange(3), padding_free=True, pad_token_id=0)
    module(batch).loss_sum.backward()
    return [p.grad for p in module.parameters()], calls


def test_activations_are_computed_again_with_the_same_dropout(layout: Layout) -> None:
    plain, once = gradients(layout, Choices(), dropout=0.3)
    again, twice = gradients(layout, Choices(activation_checkpointing=True), dropout=0.3)
    assert (once, twice) == ([1] * 3, [2] * 3)
    other, _ = gradients(layout, Choices(), dropout=0.0)
    assert any(not torch.equal(a, b) for a, b in zip(plain, other, strict=True)), "no dropout: equality says nothing"
    for a, b in zip(plain, again, strict=True):
        assert torch.equal(a, b)


def test_blocks_are_compiled_in_place_once_for_all_lengths(layout: Layout) -> None:
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> object:
        graphs.append(len(inputs))
        return graph.forward

    made, names = model(), [name for name, _ in model().named_parameters()]
    torch._dynamo.reset()
    assert compile_blocks(made, backend, None) == 3
    assert [name for name, _ in made.named_parameters()] == names
    lengths = ([0], [0, 1], [2], [0, 1, 2])
    counts = []
    for ids in lengths:
        batch = collate(ROWS, np.array(ids), padding_free=True, pad_token_id=0)
        made.get_decoder()(use_cache=False, **batch.model_inputs())
        counts.append(len(graphs))
    assert counts[0] > 0, "nothing was compiled"
    assert counts[1:] == [counts[0]] * 3, "every length is compiled anew"


def test_a_layout_that_compiles_does_so(layout: Layout) -> None:
    made = model()
    choices = replace(layout, choices=Choices(compile_backend="eager"))
    spread(choices, made, CausalLanguageModeling(), TrainConfig())
    assert all(layer._compiled_call_impl is not None for layer in made.model.layers)
    assert made.lm_head._compiled_call_impl is None


def test_a_model_that_does_not_name_its_blocks_is_refused() -> None:
    made = model()
    made._no_split_modules = []
    with pytest.raises(UserError, match="LlamaForCausalLM does not name its repeated blocks"):
        compile_blocks(made, "eager", None)
