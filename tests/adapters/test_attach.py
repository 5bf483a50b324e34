"""What gets an adapter, what is trained, and what is refused before anything is."""

from __future__ import annotations

import typing
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from toolkit.adapters.methods import METHODS, method_of
from toolkit.attention import ISOLATED
from toolkit.config import AdapterConfig
from toolkit.data.collate import collate
from toolkit.data.tokens import TokenRows
from toolkit.errors import UserError
from toolkit.objectives.causal_lm import CausalLanguageModeling

HIDDEN, INNER, LAYERS, KV = 32, 96, 3, 16
# in + out of each linear layer of a block: q, k, v, o, gate, up, down.
ENDS = 2 * HIDDEN + 2 * (HIDDEN + KV) + 2 * HIDDEN + 3 * (HIDDEN + INNER)


def trained(model) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def test_all_methods_of_the_config_are_known() -> None:
    hint = typing.get_type_hints(AdapterConfig)["method"]
    assert set(typing.get_args(hint)) - {"none"} == set(METHODS)


def test_lora_on_all_linear_layers_has_r_times_in_and_out_parameters(build) -> None:
    model, _, said = build(r=4)
    assert sum(p.numel() for p in trained(model).values()) == 4 * ENDS * LAYERS
    assert all(".lora_" in name for name in trained(model))
    assert {p.dtype for p in trained(model).values()} == {torch.float32}
    assert f"lora on {7 * LAYERS} modules (q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj)" in said[-1]
    assert f"{4 * ENDS * LAYERS:,} trainable parameters" in said[-1]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_begins_as_the_base_and_gets_gradients(build, tiny_model: Path, method: str) -> None:
    model, tokenizer, _ = build(method=method, r=4)
    assert method_of(model.peft_config["default"]) == method
    base = AutoModelForCausalLM.from_pretrained(tiny_model).train()
    ids = torch.tensor([tokenizer("the question of the user is in the answer").input_ids])
    torch.testing.assert_close(model(ids).logits, base(ids).logits, rtol=1e-4, atol=1e-4)
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
    assert any(p.grad.abs().max() > 0 for p in trained(model).values())


def test_the_same_seed_gives_the_same_adapter_whatever_was_drawn_before(build) -> None:
    first = trained(build(seed=5)[0])
    torch.rand(100)
    again, other = trained(build(seed=5)[0]), trained(build(seed=6)[0])
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_the_base_is_held_in_what_the_layout_computes_in() -> None:
    from toolkit.config import ModelConfig
    from toolkit.models import base_dtype

    assert base_dtype(ModelConfig(), "no") == "float32"
    assert base_dtype(ModelConfig(), "bf16") == "bfloat16"
    assert base_dtype(ModelConfig(), "fp16") == "float32"
    assert base_dtype(ModelConfig(dtype="float16"), "bf16") == "float16"


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        ({"target_modules": ["q_prj"]}, ["adapter.target_modules", "q_prj", "did you mean q_proj", "down_proj"]),
        ({"target_modules": ["q_proj", "w_pack"]}, ["w_pack", "its modules end in"]),
        ({"target_modules": []}, ["the list is empty"]),
        ({"target_modules": ".*\\.attention\\..*"}, ["matches no module", "model.layers.0.self_attn.q_proj"]),
        ({"target_modules": "q_proj("}, ["is not a regex"]),
        ({"exclude_modules": ["v_porj"]}, ["adapter.exclude_modules", "did you mean v_proj"]),
        ({"modules_to_save": ["score"]}, ["adapter.modules_to_save", "score"]),
        ({"modules_to_save": ["embed_tokens"]}, ["one matrix", "keep", "untie"]),
        ({"target_modules": ["lm_head"]}, ["one matrix", "keep", "untie"]),
        ({"tied_embeddings": "keep"}, ["neither embeddings nor head are trained"]),
        (
            {"tied_embeddings": "keep", "target_modules": ["embed_tokens"]},
            ["adapter.tied_embeddings", "modules_to_save", "untie"],
        ),
        ({"target_modules": ["lm_head"], "tied_embeddings": "untie", "dropout": 0.1}, ["head", "without dropout"]),
        (
            {"method": "dora", "target_modules": ["lm_head"], "tied_embeddings": "untie"},
            ["head", "adds to its matrix", "modules_to_save"],
        ),
        ({"method": "ia3", "dropout": 0.1}, ["adapter.dropout", "ia3 has no dropout"]),
        (
            {"exclude_modules": ["q_proj", "v_proj"], "target_modules": ["q_proj"]},
            ["adapter.exclude_modules", "leave no module"],
        ),
        (
            {"exclude_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]},
            ["adapter.exclude_modules", "leave no module"],
        ),
        ({"modules_to_save": ["q_proj"], "target_modules": ["q_proj"]}, ["adapter.modules_to_save", "leave no module"]),
        ({"trainable_tokens": ["<none>"]}, ["'<none>'", "model.new_tokens"]),
        ({"method": "none", "r": 4}, ["adapter.method is none"]),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(build, adapter: dict, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        build(**adapter)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_regex_and_excluded_modules(build) -> None:
    model, _, _ = build(target_modules=r".*layers\.[02]\.self_attn\.[qv]_proj", exclude_modules=["v_proj"])
    names = {name.split(".lora_")[0].removeprefix("base_model.model.") for name in trained(model)}
    assert names == {"model.layers.0.self_attn.q_proj", "model.layers.2.self_attn.q_proj"}


def test_an_untied_model_needs_no_choice_and_has_none(build, untied_model: Path) -> None:
    model, _, _ = build(untied_model, modules_to_save=["embed_tokens", "lm_head"])
    whole = [name for name in trained(model) if "modules_to_save" in name]
    assert len(whole) == 2
    with pytest.raises(UserError, match="are not tied"):
        build(untied_model, modules_to_save=["lm_head"], tied_embeddings="keep")


def test_random_weights_are_no_base(build) -> None:
    with pytest.raises(UserError, match=r"model\.random_init"):
        build(model={"random_init": True})


def test_going_on_from_an_adapter(build, tmp_path: Path) -> None:
    model, _, _ = build(method="rslora", r=4, target_modules=["q_proj"])
    with torch.no_grad():
        for parameter in trained(model).values():
            parameter.add_(0.01)
    model.save_pretrained(tmp_path / "adapter")
    further, _, said = build(name_or_path=str(tmp_path / "adapter"), method="none")
    assert "going on from" in said[0]
    assert "rslora on 3 modules (q_proj)" in said[-1]
    for name, parameter in trained(model).items():
        assert torch.equal(dict(further.named_parameters())[name], parameter)
        assert dict(further.named_parameters())[name].requires_grad
    with pytest.raises(UserError, match=r"brings its own.*remove adapter\.r"):
        build(name_or_path=str(tmp_path / "adapter"), method="none", r=8)
    with pytest.raises(UserError, match="none does not exist"):
        build(name_or_path=str(tmp_path / "none"), method="none")
    with pytest.raises(UserError, match=r"holds no adapter.*toolkit export"):
        build(name_or_path=str(tmp_path), method="none")


def test_recomputed_activations_give_the_same_gradients_to_every_matrix(build) -> None:
    """E09: the first block's input needs no gradient where the base is frozen; its adapters get theirs all the same."""
    gradients = []
    for recompute in (False, True):
        model, tokenizer, _ = build(model={"gradient_checkpointing": recompute}, r=4)
        with torch.no_grad():
            for name, parameter in trained(model).items():
                if ".lora_B." in name:  # zero at the start, which would leave lora_A without a gradient
                    parameter.normal_(std=0.02, generator=torch.Generator().manual_seed(len(name)))
        ids, computed = torch.tensor([tokenizer("the question of the user is in the answer").input_ids]), []
        first = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
        first.register_forward_hook(lambda *_, computed=computed: computed.append(1))
        model.train()(ids, labels=ids).loss.backward()
        assert len(computed) == 1 + recompute
        gradients.append({name: p.grad for name, p in trained(model).items()})
    for name, gradient in gradients[0].items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-5, atol=1e-9)


HEADS = {
    "lora on the head": {"target_modules": ["q_proj", "lm_head"], "tied_embeddings": "untie"},
    "head trained whole": {"modules_to_save": ["embed_tokens", "lm_head"], "tied_embeddings": "untie"},
    "one matrix trained whole": {"modules_to_save": ["embed_tokens"], "tied_embeddings": "keep"},
    "rows of tokens": {"trainable_tokens": ["t"]},
}


@pytest.mark.parametrize("head", HEADS)
def test_the_chunked_loss_sees_what_an_adapter_does_to_the_head(build, head: str) -> None:
    """It takes the head's matrix, not its forward: loss and gradients are those of the model's own logits."""
    model, tokenizer, _ = build(r=4, **HEADS[head])
    with torch.no_grad():
        for parameter in trained(model).values():
            parameter.add_(
                0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
    ids = tokenizer("the question of the user is in the answer").input_ids
    own = model(torch.tensor([ids]), labels=torch.tensor([ids])).loss * (len(ids) - 1)
    own.backward()
    wanted = {name: p.grad.clone() for name, p in trained(model).items()}
    model.zero_grad()
    model.set_attn_implementation(ISOLATED)
    batch = collate(TokenRows.build([(ids, ids)]), np.arange(1), padding_free=True, pad_token_id=0)
    output = CausalLanguageModeling()(model, batch)
    output.loss_sum.backward()
    assert output.loss_sum.item() == pytest.approx(own.item(), rel=1e-5)
    for name, gradient in wanted.items():
        torch.testing.assert_close(trained(model)[name].grad, gradient, rtol=1e-3, atol=1e-5)


def test_whole_modules_of_a_16_bit_base_are_trained_in_fp32(build) -> None:
    model, _, _ = build(
        model={"dtype": "bfloat16"}, modules_to_save=["embed_tokens"], tied_embeddings="keep", trainable_tokens=[]
    )
    assert {p.dtype for p in trained(model).values()} == {torch.float32}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}
