"""The folder of a finished adapter, as peft loads it: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from peft import IA3Config, LoraConfig, PeftConfig, PeftModel
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from toolkit.adapters.adapted import ADAPTER, WEIGHTS
from toolkit.adapters.base import write_marks
from toolkit.verify import check_written


def write_finished(
    model: PeftModel, trained: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    """An adapter with all that a user of it needs besides its base. `trained`: its tensors by their names in `model`.

    Raises UserError if the file does not hold what was written.
    """
    written = write_adapter(model, trained, folder)
    write_marks(model.base_marks, folder)  # type: ignore[arg-type]
    check_written(folder / WEIGHTS, {name: tensor.shape for name, tensor in written.items()})
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def describe(model: PeftModel, folder: Path) -> None:
    """Its configuration, and by what its base is known again, without weights."""
    saved_config(model).save_pretrained(str(folder))
    write_marks(model.base_marks, folder)  # type: ignore[arg-type]


def write_adapter(model: PeftModel, trained: Mapping[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """Write the adapter of `model`, whose trained tensors are given whole by their names in it; returns what was written.

    The names of a tied matrix may stand for one tensor. A method that moved the base (PiSSA, OLoRA) is written as the LoRA that
    does the same to the base as it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = adapter_tensors(model, trained)
    config = saved_config(model)
    start = getattr(model, "start_of_adapter", None)
    if start:
        tensors |= _relative_to_the_base(tensors, start)
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(_separate(whole), folder / WEIGHTS, metadata={"format": "pt"})
    config.save_pretrained(str(folder))
    return whole


def adapter_tensors(model: PeftModel, trained: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What belongs into an adapter's file, by its names there."""
    # Matrices that were drawn once and are shared by all layers, which call them theirs.
    drawn = {name: buffer for name, buffer in model.named_buffers(remove_duplicate=False) if "vera_" in name}
    return get_peft_model_state_dict(model, state_dict=drawn | dict(trained), save_embedding_layers=False)


def saved_config(model: PeftModel) -> PeftConfig:
    """The configuration that belongs to what `write_adapter` writes."""
    config = copy.deepcopy(model.peft_config[ADAPTER])
    config.inference_mode = True
    for key in ("target_modules", "exclude_modules", "modules_to_save"):
        if isinstance(names := getattr(config, key, None), set):
            setattr(config, key, sorted(names))  # a set is in another order in every process
    if isinstance(config, IA3Config) and not isinstance(config.target_modules, str):
        # Full names stand in target_modules where it was `all-linear`; peft wants those of feed-forward layers among them.
        ends = tuple(config.feedforward_modules or ())
        config.feedforward_modules = [name for name in config.target_modules or () if name.endswith(ends)]
    if isinstance(config, LoraConfig) and getattr(model, "start_of_adapter", None):
        # Twice the rank at the same scale: what was trained, less what it began with.
        factor = 2 if not config.use_rslora else 2**0.5
        config.r, config.lora_alpha = 2 * config.r, config.lora_alpha * factor  # type: ignore[assignment]
        config.init_lora_weights = True
    return config


def start_of(model: PeftModel) -> dict[str, torch.Tensor]:
    """Copies of the adapter's matrices as they are now, by the names they are saved under."""
    named = model.named_parameters(remove_duplicate=False)
    found = adapter_tensors(model, {name: p for name, p in named if p.requires_grad})
    return {name: t.detach().clone() for name, t in found.items() if ".lora_A." in name or ".lora_B." in name}


def _relative_to_the_base(
    now: Mapping[str, torch.Tensor], start: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """B A - B0 A0 as one product: [B, -B0] [A; A0]. (peft's `subtract_mutated_init` does the same from a folder.)"""
    return {
        name: torch.cat([now[name].cpu(), before.cpu()], dim=0)
        if ".lora_A." in name
        else torch.cat([now[name].cpu(), -before.cpu()], dim=1)
        for name, before in start.items()
    }


def _separate(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Safetensors refuses tensors that share memory; those of a tied matrix are written twice, as peft reads them."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        separate[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return separate
