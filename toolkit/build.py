"""The model of a run as training finds it: weights, rows for new tokens, and an adapter where one is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.distributed import DistributedConfig

from toolkit.config import AdapterConfig, RunConfig
from toolkit.errors import UserError
from toolkit.models import FP16_TRAINED, base_dtype, check_model_source, load_model, resolve_dtype, skeleton
from toolkit.new_tokens import give_rows
from toolkit.quantization import check_quantization


def build_model(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    mixed_precision: str,
    say: Callable[[str], None],
    sharded: DistributedConfig | None = None,
) -> PreTrainedModel:
    """The model of the recipe on the CPU; with an adapter, a `PeftModel` whose base is frozen.

    mixed_precision: the layout's; a frozen base is held in what it computes in. sharded: as in `load_model`.
    Raises UserError for what the recipe asks for and cannot be.
    """
    check_recipe(config, sharded=sharded is not None)
    wanted = config.adapter.wanted
    of = replace(config.model, dtype=base_dtype(config.model, mixed_precision)) if wanted else config.model
    model = load_model(of, seed=config.seed, sharded=sharded, frozen=wanted)
    give_rows(model, tokenizer, of, say)
    if not wanted:
        return model
    from toolkit.adapters.attach import attach  # imports peft, which takes a second that only adapters need

    model.requires_grad_(False)
    # A PeftModel has all that is asked of a model here, without being of its class.
    return cast(PreTrainedModel, attach(model, tokenizer, config.adapter, of, seed=config.seed, say=say))


def check_recipe(config: RunConfig, *, sharded: bool, fsdp: bool = False) -> None:
    """Refuse, before anything is loaded, an adapter that is half described, or what a layout cannot carry out.

    sharded: the model is cut into parts while it loads. fsdp: parameters are sharded.
    """
    if not config.adapter.wanted and resolve_dtype(config.model.dtype) == torch.float16:
        raise UserError(FP16_TRAINED)
    if not config.adapter.wanted and config.adapter != AdapterConfig():
        raise UserError("adapter: keys are set but adapter.method is none; set it (lora, ...), or remove the section")
    check_quantization(config.model, frozen=config.adapter.wanted)
    if fsdp and config.model.quantization == "int8":
        raise UserError(
            "model.quantization: int8 weights cannot be sharded (bitsandbytes keeps their scales beside the parameter); use "
            "nf4, or a DDP layout such as accelerate_configs/ddp.yaml"
        )
    if not sharded:
        return
    asks = {"model.new_tokens": config.model.added_tokens, "an adapter": config.adapter.wanted}
    for what in (name for name, asked in asks.items() if asked):
        raise UserError(
            f"{what} cannot go with a model that is cut into parts while it loads (tensor parallelism, "
            "fsdp_cpu_ram_efficient_loading: true); use accelerate_configs/fsdp2.yaml"
        )


def check_modules(config: RunConfig) -> None:
    """Raises UserError for modules that the adapter names and the model does not have; reads its config, no weights."""
    if config.adapter.method != "none":
        from toolkit.adapters.targets import check_targets

        check_model_source(config.model, frozen=True)
        check_targets(skeleton(config.model), config.adapter)
