"""The base beside an adapter or a whole model is the model that was trained, to the number."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from toolkit.chat.base import base_speaker
from toolkit.chat.speaker import Choice, Speaker, answers, speaker_of
from toolkit.config import AdapterConfig
from toolkit.errors import UserError
from toolkit.finished import find, load_finished

IDS = torch.tensor([[5, 70, 90, 12, 33, 7]])
ADAPTERS = {
    "lora": (AdapterConfig(method="lora"), {}),
    "new tokens": (AdapterConfig(method="lora"), {"new_tokens": ["<a>", "<b>"]}),
    "modules to save": (
        AdapterConfig(method="lora", modules_to_save=["embed_tokens"], tied_embeddings="keep"),
        {"new_tokens": ["<a>", "<b>"]},
    ),
    "untied": (
        AdapterConfig(method="lora", modules_to_save=["embed_tokens", "lm_head"], tied_embeddings="untie"),
        {"new_special_tokens": ["<a>"]},
    ),
    "head": (AdapterConfig(method="lora", target_modules=["lm_head", "q_proj"], tied_embeddings="untie"), {}),
    "pissa, saved as lora": (AdapterConfig(method="pissa"), {}),
    "loha": (AdapterConfig(method="loha"), {}),
}


@torch.no_grad()
def logits(speaker: Speaker, ids: torch.Tensor) -> torch.Tensor:
    model = speaker.model
    with model.disable_adapter() if speaker.without_adapter else contextlib.nullcontext():
        return model(input_ids=ids).logits[0]


def with_mean_rows(talker: Path, rows: int) -> PreTrainedModel:
    """The base with more rows, each the mean of those there are."""
    model = AutoModelForCausalLM.from_pretrained(talker)
    before = model.config.vocab_size
    mean = model.get_input_embeddings().weight.double().mean(0).float()
    model.resize_token_embeddings(rows, mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[before:] = mean
    return model


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_base_of_an_adapter(name: str, adapter_run: Callable[..., Path], talker: Path) -> None:
    adapter, more = ADAPTERS[name]
    run = adapter_run(adapter, **more)
    tuned = speaker_of("fine-tuned", *load_finished(run))
    with_adapter = logits(tuned, IDS)
    base = base_speaker(find(run), tuned, dtype=None)
    before, rows = len(AutoTokenizer.from_pretrained(talker)), with_adapter.shape[-1]
    assert base.model is tuned.model, "not loaded twice"
    assert rows == before + sum(map(len, more.values()))
    assert base.absent == tuple(range(before, rows))
    ids = torch.cat([IDS, torch.arange(before, rows)[None], IDS], dim=1)
    plain = with_mean_rows(talker, rows)
    with torch.no_grad():
        torch.testing.assert_close(logits(base, ids), plain(input_ids=ids).logits[0], rtol=1e-4, atol=1e-4)
    after = logits(tuned, IDS)
    assert torch.equal(after, with_adapter), "the fine-tuned one is as it was"
    assert (with_adapter[:, :before] - logits(base, IDS)[:, :before]).abs().max() > 0.1


def test_the_base_cannot_say_tokens_that_it_has_not(adapter_run: Callable[..., Path]) -> None:
    run = adapter_run(AdapterConfig(method="lora"), new_tokens=["<a>", "<b>"])
    tuned = speaker_of("fine-tuned", *load_finished(run))
    base = base_speaker(find(run), tuned, dtype=None)
    with torch.no_grad():  # so likely that nothing else would be said
        weight = base.model.get_input_embeddings().original_module.weight
        weight[-1], weight[-2] = 1e3 * weight[5], -1e3 * weight[5]
    asked, choice = [[70 + i] for i in range(30)], Choice(max_new_tokens=8)
    said = [one.text for one in answers(base, asked, choice, batch_size=30)]
    assert not any("<a>" in text or "<b>" in text for text in said)
    could = [one.text for one in answers(replace(base, absent=()), asked, choice, batch_size=30)]
    assert all("<a>" in text or "<b>" in text for text in could), could


def test_tokens_in_the_padding_of_a_vocabulary(adapter_run: Callable[..., Path], talker: Path, tmp_path: Path) -> None:
    padded = tmp_path / "padded"
    shutil.copytree(talker, padded)
    model = AutoModelForCausalLM.from_pretrained(talker)
    before = model.config.vocab_size
    model.resize_token_embeddings(before + 30)
    model.save_pretrained(padded)
    run = adapter_run(AdapterConfig(method="lora"), base=padded, new_tokens=["<a>"])
    base = base_speaker(find(run), speaker_of("fine-tuned", *load_finished(run)), dtype=None)
    assert base.absent == (before,)
    with torch.no_grad():
        torch.testing.assert_close(logits(base, IDS), model(input_ids=IDS).logits[0])


def test_a_base_that_an_adapter_has_moved_is_loaded_besides(adapter_run: Callable[..., Path], talker: Path) -> None:
    run = adapter_run(AdapterConfig(method="lora"))
    tuned = speaker_of("fine-tuned", *load_finished(run))
    assert isinstance(tuned.model, PeftModel)
    tuned.model.start_of_adapter = {"a": IDS}  # as a checkpoint of PiSSA has it
    base = base_speaker(find(run), tuned, dtype=None)
    assert base.model is not tuned.model
    assert not base.without_adapter
    plain = AutoModelForCausalLM.from_pretrained(talker)
    with torch.no_grad():
        torch.testing.assert_close(logits(base, IDS), plain(input_ids=IDS).logits[0])


def whole_run(folder: Path, talker: Path, **model: object) -> Path:
    """As a full fine-tune leaves it, with one new token; only the embeddings were changed."""
    tuned, tokenizer = load_finished(talker)
    tokenizer.add_tokens(["<a>"])
    tuned.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        tuned.get_input_embeddings().weight += 0.3
    tuned.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    config = {"output_dir": str(folder), "model": {"name_or_path": str(talker), "new_tokens": ["<a>"], **model}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("inside", ["", "model"])
def test_the_base_of_a_whole_model_is_what_its_run_began_with(tmp_path: Path, talker: Path, inside: str) -> None:
    run = whole_run(tmp_path, talker) / inside
    tuned = speaker_of("fine-tuned", *load_finished(run))
    base = base_speaker(find(run), tuned, dtype=None)
    rows = len(tuned.tokenizer)
    assert base.absent == (rows - 1,)
    assert base.stops == tuned.stops
    ids = torch.cat([IDS, torch.tensor([[rows - 1, 4]])], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(logits(base, ids), with_mean_rows(talker, rows)(input_ids=ids).logits[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no config", "no config.yaml of a run beside it"),
        ("another's config", "no config.yaml of a run beside it"),
        ("random", "began with random weights"),
        ("gone", "path does not exist"),
    ],
)
def test_a_base_that_is_not_there_is_told(tmp_path: Path, talker: Path, change: str, message: str) -> None:
    run = whole_run(tmp_path, talker, **({"random_init": True} if change == "random" else {}))
    if change == "no config":
        (run / "config.yaml").unlink()
    elif change == "another's config":
        (run / "config.yaml").write_text("base_model: x\n", encoding="utf-8")
    elif change == "gone":
        text = (run / "config.yaml").read_text(encoding="utf-8")
        (run / "config.yaml").write_text(text.replace(str(talker), str(tmp_path / "gone" / "model")), encoding="utf-8")
    tuned = speaker_of("fine-tuned", *load_finished(run))
    with pytest.raises(UserError, match=message) as info:
        base_speaker(find(run), tuned, dtype=None)
    assert "\n" not in str(info.value)
