"""The kinds of adapter: one line each, from the keys of the `adapter` section to a configuration of peft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import peft
from peft import PeftConfig

from toolkit.config import AdapterConfig


@dataclass(frozen=True)
class Method:
    """How an adapter is made.

    additive: its part of a matrix can be added to it, so the output head can have one. tokens: single rows of the embeddings
    can be trained beside it, and tied embeddings kept tied. moves_base: it begins by taking its part out of the base weights.
    """

    make: Callable[..., PeftConfig]
    sizes: Callable[[AdapterConfig], dict[str, Any]]
    additive: bool = False
    tokens: bool = False
    moves_base: bool = False


def _lora(config: AdapterConfig) -> dict[str, Any]:
    return {"r": config.r, "lora_alpha": config.alpha, "lora_dropout": config.dropout}


def _lycoris(config: AdapterConfig) -> dict[str, Any]:
    return {"r": config.r, "alpha": config.alpha, "rank_dropout": config.dropout}


def _beginning_as(start: str) -> Method:
    """LoRA whose matrices begin as a part of the base's."""
    sizes = lambda c: _lora(c) | {"init_lora_weights": start}  # noqa: E731
    return Method(peft.LoraConfig, sizes, additive=True, tokens=True, moves_base=True)


METHODS: dict[str, Method] = {
    "lora": Method(peft.LoraConfig, _lora, additive=True, tokens=True),  # https://arxiv.org/abs/2106.09685
    "rslora": Method(  # https://arxiv.org/abs/2312.03732
        peft.LoraConfig, lambda c: _lora(c) | {"use_rslora": True}, additive=True, tokens=True
    ),
    "dora": Method(  # https://arxiv.org/abs/2402.09353
        peft.LoraConfig, lambda c: _lora(c) | {"use_dora": True}, tokens=True
    ),
    "pissa": _beginning_as("pissa"),  # https://arxiv.org/abs/2404.02948
    "olora": _beginning_as("olora"),  # https://arxiv.org/abs/2406.01775
    "loha": Method(peft.LoHaConfig, _lycoris, additive=True),  # https://arxiv.org/abs/2108.06098
    "lokr": Method(peft.LoKrConfig, _lycoris, additive=True),  # https://arxiv.org/abs/2212.10650
    "ia3": Method(peft.IA3Config, lambda c: {}),  # https://arxiv.org/abs/2205.05638
    "vera": Method(  # https://arxiv.org/abs/2310.11454
        peft.VeraConfig, lambda c: {"r": c.r, "vera_dropout": c.dropout, "save_projection": True}
    ),
    "oft": Method(  # https://arxiv.org/abs/2306.07280
        peft.OFTConfig, lambda c: {"r": 0, "oft_block_size": c.r, "module_dropout": c.dropout}
    ),
    "hra": Method(peft.HRAConfig, lambda c: {"r": c.r}),  # https://arxiv.org/abs/2405.17484
    "miss": Method(
        peft.MissConfig, lambda c: {"r": c.r, "miss_dropout": c.dropout}
    ),  # https://arxiv.org/abs/2409.15371
}


def method_of(config: PeftConfig) -> str | None:
    """The name here of the method that a configuration of peft is of; None for one that is not known."""
    if type(config) is peft.LoraConfig:
        init = str(config.init_lora_weights)
        if config.use_dora:
            return "dora"
        if init.startswith(("pissa", "olora")):
            return init[:5]
        return "rslora" if config.use_rslora else "lora"
    return next((name for name, method in METHODS.items() if method.make is type(config)), None)
