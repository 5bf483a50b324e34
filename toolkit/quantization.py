"""The frozen base of an adapter in 4 or 8 bits, by bitsandbytes (QLoRA, https://arxiv.org/abs/2305.14314)."""

from __future__ import annotations

import importlib.util

import torch
from transformers import BitsAndBytesConfig, PreTrainedModel

from toolkit.config import ModelConfig
from toolkit.errors import UserError


def check_quantization(config: ModelConfig, *, frozen: bool) -> None:
    """Raises UserError where weights that are to be trained would be quantized, or the library is missing."""
    if config.double_quantization and config.quantization not in ("nf4", "fp4"):
        raise UserError(
            "model.double_quantization: only nf4 and fp4 have scales to quantize; set model.quantization, or remove it"
        )
    if config.quantization is None:
        return
    if not frozen:
        raise UserError(
            f"model.quantization: {config.quantization}: quantized weights cannot be trained, only an adapter on them; set "
            "adapter.method: lora, or remove it"
        )
    if config.random_init:
        raise UserError("model.quantization: random weights are not worth it; remove it or model.random_init")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(
            f"model.quantization: {config.quantization} needs the package bitsandbytes: pip install 'toolkit[quantization]'"
        )


def quantizer(config: ModelConfig) -> BitsAndBytesConfig:
    """The configuration of transformers for `model.quantization`. Embeddings, norms and the output head are not quantized."""
    if config.quantization == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=config.quantization,
        bnb_4bit_use_double_quant=config.double_quantization,
        # What is floating-point FSDP2 shards; in bf16, so that mixed precision has nothing to cast, which would end the bits.
        bnb_4bit_quant_storage=torch.bfloat16,
        bnb_4bit_compute_dtype=torch.bfloat16 if config.dtype in ("bfloat16", "bf16") else torch.float32,
    )


def keep_trainable(model: torch.nn.Module) -> None:
    """On a CPU, 4-bit layers are arranged for inference by the first forward in eval mode, for good, and from then on give no
    gradient to what lies before them, with nothing but a warning. Here an evaluation may come before training."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


def dequantized(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The same model with the values of its quantized matrices in `dtype`, an ordinary one from now on."""
    plain = model.dequantize(dtype=dtype)
    plain.config.dtype = dtype
    return plain
