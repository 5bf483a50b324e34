"""What can be said of adapters without importing peft, which takes over a second: most runs have no use for it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

if TYPE_CHECKING:
    from peft import PeftModel

ADAPTER = "default"  # peft's name of an adapter that is alone
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"


def is_adapted(model: Any) -> TypeGuard[PeftModel]:
    """True for a `PeftModel`. Where nobody has imported peft, there is none."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)


def numbers(parameter: torch.nn.Parameter) -> int:
    """Numbers that a parameter stands for: two 4-bit ones share a byte."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else int(torch.Size(state.shape).numel())
