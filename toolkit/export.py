"""The product of a run: a plain Hugging Face folder that loads without this toolkit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import cast

import torch
from peft import PeftModel
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

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
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=adapted)
    weights = cast(dict[str, torch.Tensor], get_model_state_dict(module, options=options))

    def write() -> None:
        """On the main process."""
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        if adapted:
            write_adapter_folder(plain.model, trained_tensors(plain, weights), tokenizer, partial)
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
    check_written(folder / WEIGHTS, {name: tensor.shape for name, tensor in written.items()})
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def trained_tensors(module: ObjectiveModule, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The trained tensors by all their names in the model: a tied one has several, of which `weights` may know one."""
    by_parameter: dict[torch.nn.Parameter, torch.Tensor] = {}
    every = [(name, p) for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad]
    for name, parameter in every:
        if name in weights:
            by_parameter.setdefault(parameter, weights[name])
    return {name.removeprefix("model."): by_parameter[parameter] for name, parameter in every}


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
