"""D13: tokens that a recipe adds have rows, the rows are trained, and the folder loads by peft's own words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

from toolkit.adapters.folder import write_finished
from toolkit.config import ModelConfig, RunConfig
from toolkit.errors import UserError
from toolkit.models import load_model, load_tokenizer
from toolkit.new_tokens import give_rows

TOKENS = {"new_tokens": ["<tool>"], "new_special_tokens": ["<|note|>"]}


def test_new_rows_are_the_mean_of_the_others_and_tokens_act(fitted_models: dict[str, Path]) -> None:
    config, said = ModelConfig(name_or_path=str(fitted_models["tied"]), **TOKENS), []
    tokenizer = load_tokenizer(config)
    first = len(tokenizer) - 2
    assert tokenizer("a<tool>b<|note|>").input_ids[1] == first
    assert tokenizer.decode([first, first + 1], skip_special_tokens=True) == "<tool>"
    model = load_model(config, seed=0)
    old = model.get_input_embeddings().weight.detach().clone()
    assert old.shape == (first, 32)
    give_rows(model, tokenizer, config, said.append)
    rows = model.get_input_embeddings().weight
    assert rows.shape == (first + 2, 32)
    assert model.config.vocab_size == first + 2
    assert torch.equal(rows[:first], old)
    for row in rows[first:]:
        torch.testing.assert_close(row, old.double().mean(0).float(), rtol=1e-6, atol=1e-9)
    assert model.lm_head.weight is rows
    assert f"{first} -> {first + 2}" in said[0]
    give_rows(model, tokenizer, config, said.append)
    assert len(said) == 1, "they are there already"


def test_spare_rows_are_taken_and_nothing_grows(tiny_model: Path) -> None:
    config, said = ModelConfig(name_or_path=str(tiny_model), **TOKENS), []
    model = load_model(config, seed=0)
    give_rows(model, load_tokenizer(config), config, said.append)
    assert model.get_input_embeddings().weight.shape == (320, 32)
    assert not said


def test_names_that_cannot_be(tiny_model: Path) -> None:
    for wrong in ({"new_tokens": ["<a>"], "new_special_tokens": ["<a>"]}, {"new_tokens": [" "]}):
        with pytest.raises(UserError, match=r"model\.new"):
            load_tokenizer(ModelConfig(name_or_path=str(tiny_model), **wrong))


@pytest.mark.parametrize("base", ["tied", "untied", "tied, spare rows", "untied, spare rows"])
def test_the_folder_loads_without_a_word_on_sizes(build, fitted_models: dict, tmp_path: Path, base: str) -> None:
    model, tokenizer, said = build(fitted_models[base], model=TOKENS, target_modules=["q_proj", "v_proj"])
    assert "the embeddings of 2 tokens" in said[-1]
    rows = {name: p for name, p in model.named_parameters() if "trainable_tokens_delta" in name}
    assert [p.shape for p in rows.values()] == [(2, 32)] * (2 if "untied" in base else 1)
    ids = torch.tensor([tokenizer("the <tool> of <|note|> user").input_ids])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    trained = {n: p.detach() for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    write_finished(model, trained, tokenizer, tmp_path / "adapter")
    again = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    assert len(AutoTokenizer.from_pretrained(tmp_path / "adapter")) == len(tokenizer)
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model.eval()(ids).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "adapter",
    [
        {"method": "ia3"},
        {"target_modules": ["embed_tokens"], "tied_embeddings": "untie"},
    ],
)
def test_rows_that_would_stay_random_are_refused(build, adapter: dict) -> None:
    with pytest.raises(UserError, match=r"<tool>, <\|note\|> would stay as they were made.*modules_to_save"):
        build(model=TOKENS, **adapter)


def test_an_adapter_with_new_tokens_needs_a_whole_model_to_load() -> None:
    from toolkit.build import check_recipe

    with pytest.raises(UserError, match=r"model\.new_tokens cannot go with.*fsdp2\.yaml"):
        check_recipe(RunConfig(model=ModelConfig(new_tokens=["<a>"])), sharded=True)


def test_rows_of_a_tied_matrix_may_be_said_to_be_kept(build) -> None:
    plain, kept = (build(model=TOKENS, **keys)[2][-1] for keys in ({}, {"tied_embeddings": "keep"}))
    assert plain == kept
