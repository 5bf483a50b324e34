"""The product of a run: a plain Hugging Face folder that loads without this toolkit."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from toolkit.checkpoint.tensors import WEIGHT, read_tensors, stored_tensors
from toolkit.errors import UserError
from toolkit.layout import Layout
from toolkit.objectives import ObjectiveModule

# Names of the model's tensors in a checkpoint: it is the `model` of an `ObjectiveModule`.
_PREFIX = f"{WEIGHT}model."


def export_model(layout: Layout, module: ObjectiveModule, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write weights, config, tokenizer, chat template and generation config to `folder`, complete or not at all.

    Sharded weights are gathered on the main process only, in host memory.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(module, options=options)
    plain = layout.accelerator.unwrap_model(module)
    # Of tied parameters one name is enough; gathered from shards they no longer share memory, which would write them twice.
    once = {name for name, _ in (*plain.named_parameters(), *plain.named_buffers())}
    if layout.is_main:
        model: PreTrainedModel = plain.model
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        state = {name.removeprefix("model."): tensor for name, tensor in weights.items() if name in once}
        model.save_pretrained(partial, state_dict=state)
        tokenizer.save_pretrained(partial)
        shutil.rmtree(folder, ignore_errors=True)  # that of a finished run which was then extended
        partial.rename(folder)
    layout.wait()


def export_checkpoint(checkpoint: Path, folder: Path) -> None:
    """The same from the folder of a checkpoint. Raises UserError if it holds only a part of the model."""
    description = checkpoint / "model"
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(description))
    names = {_PREFIX + name: tensor for name, tensor in model.state_dict().items()}
    stored = stored_tensors(checkpoint)
    there = {name: names[name] for name in names if name in stored}
    missing = {name for name, _ in model.named_parameters() if _PREFIX + name not in stored}
    if missing:
        raise UserError(f"{checkpoint} has no {min(missing)}: it holds what was trained, not the whole model")
    dtypes = {stored[name].properties.dtype for name in there}
    model = model.to(dtypes.pop() if len(dtypes) == 1 else None)
    into = {name: tensor for name, tensor in ((_PREFIX + n, t) for n, t in model.state_dict().items()) if name in there}
    read_tensors(checkpoint, into)
    partial = folder.with_name(folder.name + ".partial")
    model.save_pretrained(partial)
    for file in description.iterdir():
        if file.is_file():
            shutil.copyfile(file, partial / file.name)
    partial.rename(folder)


def save_description(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """All of a Hugging Face folder but the weights: config, generation config, tokenizer and chat template."""
    model.config.save_pretrained(folder)
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
