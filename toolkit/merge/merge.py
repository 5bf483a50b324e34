"""Merge, write, read again, compare: a folder is left only if it holds the model that was trained."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from toolkit.errors import UserError
from toolkit.finished import base_of, load_finished
from toolkit.merge.fold import fold
from toolkit.merge.proof import TOLERANCE, Proof, logits, prove
from toolkit.models import load_config, resolve_dtype

_SHARD = "5GB"


def merge(
    adapter: Path,
    output: Path,
    rows: Sequence[Sequence[int]],
    *,
    dtype: str | None,
    say: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Proof:
    """Write the model of an adapter's folder to `output`, a plain Hugging Face folder, if it gives the adapter's logits.

    rows: token ids to compare on. dtype: of the result; None, what the base is stored in. Needs the memory of one model
    in that dtype, and of one file of it while it is written. `output` is there only if the proof has no fault. Raises
    UserError for a base that is not the adapter's or cannot be loaded.
    """
    of = base_of(adapter)
    target = resolve_dtype(dtype) if dtype else _stored_dtype(of)
    if target not in TOLERANCE:
        raise UserError(f"--dtype {dtype}: give float32, bfloat16 or float16")
    word = str(target).removeprefix("torch.")
    model, tokenizer = load_finished(adapter, dtype=word)
    trained = logits(model, rows)
    with cast(PeftModel, model).disable_adapter():
        base = logits(model, rows)
    if of.quantization:
        say(f"the base is merged as training saw it, {of.quantization} weights as {word}")
        model = _full_precision(model, target)
    plain = fold(cast(PeftModel, model), progress)
    plain.generation_config = _generation_config(adapter, plain)
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    plain.config.dtype = target
    plain.save_pretrained(partial, max_shard_size=_SHARD)
    tokenizer.save_pretrained(partial)
    del model, plain
    gc.collect()
    proof = prove(base, trained, logits(_read_again(partial, target), rows), target)
    if proof.fault is None:
        partial.rename(output)
    else:
        shutil.rmtree(partial)
    return proof


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


def _generation_config(adapter: Path, plain: PreTrainedModel) -> GenerationConfig:
    if (adapter / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(adapter)
    return plain.generation_config


def _full_precision(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The same model with the values of its quantized matrices in `dtype`."""
    return model
