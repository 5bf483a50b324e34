"""Model and tokenizer from a hub name, a folder or a GGUF file, checked before any weight is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.distributed import DistributedConfig
from transformers.utils import logging as transformers_logging

from toolkit.config import ModelConfig
from toolkit.errors import UserError
from toolkit.new_tokens import add_tokens
from toolkit.quantization import check_quantization, keep_trainable, quantizer

FP16_TRAINED = (
    "model.dtype: float16 weights cannot be trained (their gradients underflow); use float32, and a layout with "
    "mixed_precision: fp16 to compute in it; or an adapter, whose base may be float16"
)
_DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "half": torch.float16,
}


def resolve_dtype(word: str | None) -> torch.dtype | None:
    """`model.dtype` as a torch dtype; None for 'auto', the checkpoint's own. Unset means fp32 master weights."""
    if word is None:
        return torch.float32
    name = word.lower().removeprefix("torch.")
    if name == "auto":
        return None
    if name not in _DTYPES:
        raise UserError(f"model.dtype: {word!r} is not known; accepted: auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def base_dtype(config: ModelConfig, mixed_precision: str) -> str:
    """`model.dtype` of a model that an adapter freezes: where it is not set, what the layout computes in, since weights that
    never change need not be held in more. fp16 is held as float32: norms would overflow."""
    return config.dtype or ("bfloat16" if mixed_precision == "bf16" else "float32")


def check_model_source(config: ModelConfig, *, frozen: bool = False) -> None:
    """Refuse what cannot be trained, in no time and without a network: a missing path, a folder without config.json, a
    dtype that is unknown, or float16 unless the weights are `frozen`."""
    if resolve_dtype(config.dtype) == torch.float16 and not frozen:
        raise UserError(FP16_TRAINED)
    name = config.name_or_path
    if name is None:
        raise UserError(
            "model.name_or_path is not set; give a hub name or a folder, for example --model.name_or_path ./m"
        )
    path = Path(name).expanduser()
    if not path.exists():
        looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1
        if looks_local:
            resolved = path.resolve()
            parent = next(p for p in resolved.parents if p.exists())
            raise UserError(
                f"model.name_or_path: {name}: path does not exist (looked for {resolved}; "
                f"the nearest folder that exists: {parent})"
            )
        return
    needed = config.gguf_file or "config.json"
    if not (path / needed).is_file():
        raise UserError(f"model.name_or_path: {path.resolve()} has no {needed}; it is not a model folder")


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The model's tokenizer; a missing pad token is set to the end-of-sequence token, which costs nothing here since
    padding is masked by position, never by token id."""
    check_model_source(config, frozen=True)  # whether they are is no affair of the tokenizer's
    tokenizer = _hub_call(
        config,
        lambda: AutoTokenizer.from_pretrained(
            config.name_or_path,
            revision=config.revision or "main",
            trust_remote_code=config.trust_remote_code,
            **({"gguf_file": config.gguf_file} if config.gguf_file else {}),
        ),
    )
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is None:
        raise UserError(f"model.name_or_path: the tokenizer of {config.name_or_path} has no end-of-sequence token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    add_tokens(tokenizer, config)
    return tokenizer


def load_model(
    config: ModelConfig, *, seed: int, sharded: DistributedConfig | None = None, frozen: bool = False
) -> PreTrainedModel:
    """The causal language model in `model.dtype`, on the CPU, in training mode; random weights with `random_init`.

    sharded: each process reads only its part of the weights (tensor parallelism); None reads all. frozen: the weights are
    the base of an adapter. The embeddings have no rows for new tokens yet: see `new_tokens.give_rows`.
    """
    check_model_source(config, frozen=frozen)
    check_quantization(config, frozen=frozen)
    dtype = resolve_dtype(config.dtype)
    if config.random_init and config.gguf_file:
        raise UserError("model.random_init reads config.json and no weights; it cannot be set with model.gguf_file")
    transformers_logging.disable_progress_bar()
    if config.random_init:
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(load_config(config), trust_remote_code=config.trust_remote_code)
        model = model.to(dtype or torch.float32)
    else:
        model = _read(config, dtype, sharded)
    if config.gguf_file and config.quantization:
        model = _again(model, quantization_config=quantizer(config))
    if sharded is not None and not model.is_distributed_loading_by_transformers:
        # Weights that were made here, or read from a file that has all or nothing: every process cuts out its own part.
        model = _again(model, distributed_config=sharded)
    if sharded is not None:
        del model.config.distributed_config  # this run's affair, not that of the model that is saved
    if config.quantization:
        keep_trainable(model)
    else:
        model.config.dtype = model.dtype
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def _read(config: ModelConfig, dtype: torch.dtype | None, sharded: DistributedConfig | None) -> PreTrainedModel:
    """The stored weights. Those in a pickle could run code, so they are not read."""
    options: dict[str, Any] = {"use_safetensors": True}
    if config.gguf_file:
        # Left packed they could not be trained, and the result would not be an ordinary model.
        options = {"gguf_file": config.gguf_file, "quantization_config": GgufConfig(dequantize=True)}
    elif config.quantization:
        options["quantization_config"] = quantizer(config)
    elif sharded is not None:
        options["distributed_config"] = sharded
    options |= {"revision": config.revision or "main", "trust_remote_code": config.trust_remote_code}
    name = str(config.name_or_path)
    return _hub_call(config, lambda: AutoModelForCausalLM.from_pretrained(name, dtype=dtype or "auto", **options))


def _again(model: PreTrainedModel, **how: Any) -> PreTrainedModel:
    """The weights of `model` loaded once more, quantized or cut into parts."""
    return type(model).from_pretrained(
        None, config=model.config, state_dict=model.state_dict(), dtype=model.dtype, **how
    )


def load_config(config: ModelConfig) -> PretrainedConfig:
    """The model's architecture, without weights."""
    shared = {"revision": config.revision or "main", "trust_remote_code": config.trust_remote_code}
    file = {"gguf_file": config.gguf_file} if config.gguf_file else {}
    return _hub_call(config, lambda: AutoConfig.from_pretrained(str(config.name_or_path), **shared, **file))


def skeleton(config: ModelConfig) -> PreTrainedModel:
    """The model without weights, on the meta device: its modules and their names."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(load_config(config), trust_remote_code=config.trust_remote_code)


def embedding_rows(model: PreTrainedModel) -> int:
    """Tokens that the model has an embedding for."""
    return int(model.get_input_embeddings().weight.shape[0])  # type: ignore[union-attr, index]


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, largest_id: int) -> None:
    """Token ids must have embedding rows; without this check a GPU fails far from the cause."""
    rows = embedding_rows(model)
    if largest_id >= rows:
        token = tokenizer.convert_ids_to_tokens(largest_id)
        raise UserError(
            f"token id {largest_id} ({token!r}) >= {rows} embedding rows; tokenizer and model do not belong together"
        )


def trained_dtypes(model: torch.nn.Module) -> set[torch.dtype]:
    """Of the parameters that are trained."""
    return {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}


def describe_dtypes(model: torch.nn.Module) -> str:
    """Real dtypes of trainable and frozen parameters, for the banner."""
    kinds: dict[str, set[str]] = {"trainable": set(), "frozen": set()}
    for parameter in model.parameters():
        kinds["trainable" if parameter.requires_grad else "frozen"].add(str(parameter.dtype).removeprefix("torch."))
    return ", ".join(f"{'/'.join(sorted(dtypes))} {kind}" for kind, dtypes in kinds.items() if dtypes)


def _hub_call(config: ModelConfig, load):  # type: ignore[no-untyped-def]
    """Turn "not found" and "offline" of the hub client into one line that names the id."""
    try:
        return load()
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"model.name_or_path: {config.name_or_path} comes with code of its own, which is not run; if you have read "
                "and trust it, set model.trust_remote_code: true"
            ) from None
        if Path(str(config.name_or_path)).expanduser().exists() and not isinstance(error, OSError):
            raise
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"model.name_or_path: cannot load {config.name_or_path}: {reason}") from None
