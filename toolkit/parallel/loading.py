"""Models that transformers shards while it loads them, so that no process ever holds more than its own part.

So it is with tensor parallelism, where the matrices of each layer are split over devices that work on the same rows, and with
FSDP2 where the layout asks for it (`fsdp_cpu_ram_efficient_loading`). What is here decides whether a model can be split so.
"""

from __future__ import annotations

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from toolkit.errors import UserError
from toolkit.parallel.choices import Choices

# What a plan splits, by the names that configurations give it.
_SPLIT = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size", "vocab_size")


def check_tensor_parallel(config: PretrainedConfig, size: int) -> None:
    """Raises UserError for a model without a plan, or with a size that `size` devices cannot share evenly."""
    text = config.get_text_config()
    if not getattr(text, "base_model_tp_plan", None):
        raise UserError(
            f"parallelism_config_tp_size: {size}: {config.model_type} has no tensor-parallel plan in transformers; families "
            f"that have one: {', '.join(_families())}. Use FSDP2 (accelerate_configs/fsdp2.yaml) for this one"
        )
    for name in _SPLIT:
        value = getattr(text, name, None)
        if isinstance(value, int) and value % size:
            raise UserError(
                f"parallelism_config_tp_size: {size} does not divide {name} of {config.model_type}, which is {value}; use a "
                "size that does, or 1"
            )


def check_sharded_loading(config: PretrainedConfig) -> None:
    """Raises UserError for a model that transformers does not know how to shard."""
    if not getattr(config.get_text_config(), "base_model_fsdp_plan", None):
        raise UserError(
            f"fsdp_cpu_ram_efficient_loading: true: {config.model_type} has no FSDP plan in transformers, so each process "
            "cannot read its part alone; set it to false"
        )


def distributed_config(choices: Choices) -> DistributedConfig | None:
    """The layout's mesh in the words of transformers; None where every process reads the whole model."""
    if not choices.sharded_loading:
        return None
    return DistributedConfig(
        tp_size=choices.tensor,
        fsdp_size=choices.shard * choices.context,
        dp_replicate_size=choices.replicate,
        fsdp_mixed_precision=choices.mixed_precision == "bf16",
        # Without accelerators everything is in host memory, and none of it can be pinned.
        fsdp_cpu_offload=choices.cpu_offload and torch.accelerator.is_available(),
    )


def complete_sharding(module: torch.nn.Module, model: PreTrainedModel) -> None:
    """Make `module`, which wraps a model that transformers has sharded, the root at which FSDP2 begins and ends a step."""
    if isinstance(model, FSDPModule):
        mesh = next(p.device_mesh for p in model.parameters() if isinstance(p, DTensor))
        fully_shard(module, mesh=mesh[tuple(name for name in mesh.mesh_dim_names or () if name != "tp")])


def _families() -> list[str]:
    found = []
    for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            plan = getattr(CONFIG_MAPPING[family], "base_model_tp_plan", None)
        except (KeyError, ImportError):
            continue
        found += [family] * bool(plan)
    return sorted(found)
