"""The product of a run: a plain Hugging Face folder that loads without this toolkit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import cast

import torch
from peft import PeftModel
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from toolkit.adapters.base import write_marks
from toolkit.adapters.folder import WEIGHTS, saved_config, write_adapter
from toolkit.finished import load_checkpoint
from toolkit.layout import Layout
from toolkit.objectives import ObjectiveModule
from toolkit.verify import check_shapes, check_written, written_shapes


def export_model(layout: Layout, module: ObjectiveModule, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write weights, config, tokenizer, chat template and generation config to `folder`, complete or not at all.

    Sharded weights are gathered on the main process only, in host memory; of a model with an adapter, those of the adapter.
    Raises UserError if the files do not hold what was written.
    """
    plain = layout.accelerator.unwrap_model(module)
    adapted = isinstance(plain.model, PeftModel)
    weights = _trained(layout, plain) if adapted else _all(module)

    def write() -> None:
        """On the main process."""
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        if adapted:
            write_adapter_folder(plain.model, weights, tokenizer, partial)
        else:
            # Of tied parameters one name is enough; gathered from shards they no longer share memory, which would write
            # them twice.
            once = {name for name, _ in (*plain.named_parameters(), *plain.named_buffers())}
            state = {name.removeprefix("model."): tensor for name, tensor in weights.items() if name in once}
            shapes = {name: tensor.shape for name, tensor in state.items()}
            plain.model.save_pretrained(partial, state_dict=state)  # takes the tensors out of `state` as it writes them
            tokenizer.save_pretrained(partial)
            found = written_shapes(sorted(partial.glob("*.safetensors")))
            kept = {name: shape for name, shape in shapes.items() if name in found or len(shape) > 0}
            check_shapes(partial, found, kept)
        shutil.rmtree(folder, ignore_errors=True)  # that of a finished run which was then extended
        partial.rename(folder)

    layout.on_main(write)
    layout.wait()


def write_adapter_folder(
    model: PeftModel, trained: dict[str, torch.Tensor], tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    """An adapter with all that a user of it needs besides its base. `trained`: its tensors by their names in `model`."""
    written = write_adapter(model, trained, folder)
    write_marks(model.base_marks, folder)  # type: ignore[arg-type]
    check_written(folder / WEIGHTS, {name: tensor.shape for name, tensor in written.items()})
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _all(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All weights, whole, on the main process; nothing on the others."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return cast(dict[str, torch.Tensor], get_model_state_dict(module, options=options))


def _trained(layout: Layout, module: ObjectiveModule) -> dict[str, torch.Tensor]:
    """The trained tensors of the model, whole, on the main process, by all their names there: a tied one has several.

    Not by a state dict, in which quantized layers put more than their parameters.
    """
    whole: dict[torch.nn.Parameter, torch.Tensor] = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            value = parameter.detach()
            value = value.full_tensor() if isinstance(value, DTensor) else value
            if layout.is_main:
                whole[parameter] = value.cpu()
    every = module.model.named_parameters(remove_duplicate=False)
    return {name: whole[parameter] for name, parameter in every if parameter in whole}


def export_checkpoint(checkpoint: Path, folder: Path) -> None:
    """The same from the folder of a checkpoint. Raises UserError if it holds only a part of the model."""
    model, tokenizer = load_checkpoint(checkpoint)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    if isinstance(model, PeftModel):
        model.generation_config = GenerationConfig.from_pretrained(checkpoint / "model")
        trained = {name: p for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
        write_adapter_folder(model, trained, tokenizer, partial)
    else:
        model.save_pretrained(partial)
        for file in (checkpoint / "model").iterdir():
            if file.is_file():
                shutil.copyfile(file, partial / file.name)
    partial.rename(folder)


def save_description(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """All of a Hugging Face folder but the weights: config, generation config, tokenizer and chat template."""
    model.config.save_pretrained(folder)
    if isinstance(model, PeftModel):
        saved_config(model).save_pretrained(folder)
        write_marks(model.base_marks, folder)  # type: ignore[arg-type]
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def set_turn_end(model: PreTrainedModel, turn_end: list[int]) -> list[int]:
    """Add ids on which generation must stop to the model's generation config; returns those that were missing.

    They are those that end an assistant turn in the chat template, and the tokenizer's own end of sequence.
    """
    config = model.generation_config
    known = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    known = [token for token in known if token is not None]
    missing = [token for token in turn_end if token not in known]
    if missing:
        # The first id is the one that most tools take as "the" end of sequence.
        config.eos_token_id = missing + known
    return missing
