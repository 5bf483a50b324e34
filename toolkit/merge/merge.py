"""Merge, write, read again, compare: a folder is left only if it holds the model that was trained."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel

from toolkit.errors import UserError
from toolkit.export import export_checkpoint
from toolkit.finished import base_in, find, load_finished, with_adapter
from toolkit.merge.fold import fold
from toolkit.merge.proof import INT8_TOLERANCE, TOLERANCE, Proof, logits, prove
from toolkit.models import check_model_source, load_config, resolve_dtype

_SHARD = "5GB"


@dataclass(frozen=True)
class Merged:
    """What came of a merge."""

    proof: Proof
    dtype: torch.dtype
    parameters: int
    tied: bool | None

    def describe(self) -> str:
        """For people: size, precision, and whether embeddings and head are one matrix (None: there is no such choice)."""
        ends = {True: ", embeddings and head are one matrix", False: ", embeddings and head are two matrices", None: ""}
        return f"{self.parameters:,} parameters in {str(self.dtype).removeprefix('torch.')}{ends[self.tied]}"


def merge(
    name: Path,
    output: Path,
    rows: Sequence[Sequence[int]],
    *,
    dtype: str | None,
    say: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Merged:
    """Write the model of a run with an adapter to `output`, a plain Hugging Face folder, if it gives the trained logits.

    name: a run's folder, an adapter's, or a checkpoint's. rows: token ids to compare on. dtype: of the result; None, what
    the base is stored in. Needs the memory of one model in that dtype, and of one file of it while it is written. `output`
    is there only if the proof has no fault. Raises UserError for a base that is not the adapter's or cannot be loaded.
    """
    place = find(name)
    of = base_in(place)
    if of is None:
        raise UserError(f"{name} is a whole model already; there is nothing to merge")
    check_model_source(of, frozen=True)
    target = resolve_dtype(dtype) if dtype else _stored_dtype(of)
    if target not in TOLERANCE:
        raise UserError(f"--dtype {dtype}: give float32, bfloat16 or float16")
    word = str(target).removeprefix("torch.")
    model, tokenizer = load_finished(name, dtype=word)
    _check_room(output, model.num_parameters() * target.itemsize)
    generation = model.generation_config
    trained = logits(model, rows)
    with cast(PeftModel, model).disable_adapter():
        base = logits(model, rows)
    if of.quantization:
        say(f"the base is merged as training saw it: {of.quantization} weights, as {word}")
        with tempfile.TemporaryDirectory() as folder:
            adapter = place.path
            if place.kind == "checkpoint":
                adapter = Path(folder) / "adapter"
                export_checkpoint(place.path, adapter)
            model, _ = with_adapter(adapter, replace(of, dtype=word), dequantize=target)
    plain = fold(cast(PeftModel, model), progress)
    plain.generation_config = generation
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    plain.config.dtype = target
    plain.save_pretrained(partial, max_shard_size=_SHARD)
    tokenizer.save_pretrained(partial)
    parameters = plain.num_parameters()
    tied = getattr(plain.config.get_text_config(), "tie_word_embeddings", None)
    del model, plain
    gc.collect()
    proof = prove(
        base,
        trained,
        logits(_read_again(partial, target), rows),
        max(TOLERANCE[target], INT8_TOLERANCE if of.quantization == "int8" else 0.0),
    )
    if proof.fault is None:
        partial.rename(output)
    else:
        shutil.rmtree(partial)
    return Merged(proof, target, parameters, tied)


def _check_room(output: Path, size: int) -> None:
    free = shutil.disk_usage(output.absolute().parent).free
    if free < size:
        raise UserError(f"{output}: the merged model needs {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free there")


def _stored_dtype(of: Any) -> torch.dtype:
    found = None if of.gguf_file else getattr(load_config(of), "dtype", None)
    return found if found in TOLERANCE else torch.float32


def _read_again(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """As any user loads it. Raises UserError if names of tensors there are not those of the model."""
    found: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    model, told = found
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if told[what]:
            raise UserError(
                f"{folder}: {what.replace('_', ' ')} when read again: {', '.join(sorted(map(str, told[what]))[:3])}"
            )
    return cast(PreTrainedModel, model).eval()
