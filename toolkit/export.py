"""The product of a run: a plain Hugging Face folder that loads without this toolkit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import cast

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from toolkit.adapters.adapted import is_adapted
from toolkit.finished import load_checkpoint
from toolkit.layout import Layout
from toolkit.objectives import ObjectiveModule
from toolkit.verify import check_shapes, written_shapes


def export_model(layout: Layout, module: ObjectiveModule, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write weights, config, tokenizer, chat template and generation config to `folder`, complete or not at all.

    Sharded weights are gathered on the main process only, in host memory; of a model with an adapter, those of the adapter.
    Raises UserError if the files do not hold what was written.
    """
    plain = layout.accelerator.unwrap_model(module)
    adapted = is_adapted(plain.model)
    weights = _trained(layout, plain) if adapted else _all(module)

    def write() -> None:
        """On the main process."""
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        if adapted:
            from toolkit.adapters.folder import write_finished

            write_finished(plain.model, weights, tokenizer, partial)
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
    if is_adapted(model):
        from toolkit.adapters.folder import write_finished

        model.generation_config = GenerationConfig.from_pretrained(checkpoint / "model")  # type: ignore[assignment]
        trained = {name: p for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
        write_finished(model, trained, tokenizer, partial)
    else:
        model.save_pretrained(partial)
        for file in (checkpoint / "model").iterdir():
            if file.is_file():
                shutil.copyfile(file, partial / file.name)
    partial.rename(folder)


def save_description(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """All of a Hugging Face folder but the weights: config, generation config, tokenizer and chat template."""
    model.config.save_pretrained(folder)
    if is_adapted(model):
        from toolkit.adapters.folder import describe

        describe(model, folder)
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
