"""What can go wrong far from its cause, tried before the first step."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.adapters.adapted import is_adapted
from toolkit.attention import ISOLATED, choose_attention
from toolkit.data.prepared import PreparedData
from toolkit.errors import UserError
from toolkit.models import check_vocabulary, trained_dtypes
from toolkit.probe import one_layer, probe_model, probe_parts
from toolkit.start import Run
from toolkit.verify import refuse_different_starts


def check_before_training(
    run: Run, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: PreparedData
) -> None:
    """What can go wrong far from its cause, tried on the real model before the first step. Moves nothing to a device."""
    config, layout = run.config, run.layout
    if run.checkpoint is not None and is_adapted(model):
        from toolkit.adapters.base import check_base

        check_base(model, run.checkpoint.path / "model")
    if len(set(layout.gather_objects([data.fingerprint]))) > 1:
        raise UserError("data: the processes read different rows; are the data files the same on every node?")
    if layout.mixed_precision == "bf16" and trained_dtypes(model) == {torch.bfloat16}:
        raise UserError(
            "model.dtype: bfloat16 trains bf16 weights, and mixed_precision: bf16 in the accelerate config keeps fp32 "
            "ones; use model.dtype: float32 (recommended), or a layout with mixed_precision: no"
        )
    if config.adapter.wanted:
        refuse_different_starts(layout, model)
    largest = max(rows.largest_id for rows in (data.train, data.eval) if rows is not None)
    check_vocabulary(model, tokenizer, largest)
    if data.train.paired and layout.choices.context > 1:
        raise UserError("parallelism_config_cp_size: pairs of answers cannot be cut over devices yet; set it to 1")
    if config.train.padding_free:
        # Two answers that share their prompt are known to our attention only.
        chosen = ISOLATED if data.train.paired else choose_attention(config.model.attn_implementation, layout.device)
        model.set_attn_implementation(chosen)
    elif config.model.attn_implementation is not None:
        model.set_attn_implementation(config.model.attn_implementation)
    if model.config._attn_implementation == "flash_attention_2":
        return  # it runs on the device only, and isolates rows by design; the others are tried here
    # Of a model that was sharded while loading, no process can run a part; one layer of its kind stands for it.
    probed = one_layer(model) if layout.choices.sharded_loading else model
    probe_model(probed, data.train, padding_free=config.train.padding_free)
    if layout.choices.context > 1:
        probe_parts(probed, data.train, layout.context_group("gloo"))
