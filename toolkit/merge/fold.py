"""Adapter weights added into those of the base, one matrix after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.trainable_tokens import TrainableTokensLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from transformers import PreTrainedModel

from toolkit.adapters.quiet import quiet
from toolkit.errors import UserError


def fold(model: PeftModel, progress: Callable[[int, int], None] = lambda done, of: None) -> PreTrainedModel:
    """The base of `model` with all that its adapter does, in place, in the dtype that the base has.

    Each sum is made in fp32 and rounded once; besides the model, one matrix is held at a time. Embeddings and head that the
    adapter made different are different in the result, and its config says so. Raises UserError for an adapter with
    values that are not finite.
    """
    base: Any = model.get_base_model()
    _separate_ends(base)
    layers = [(name, module) for name, module in base.named_modules() if isinstance(module, BaseTunerLayer)]
    with quiet():
        for done, (name, layer) in enumerate(layers, 1):
            _fold_layer(name, layer)
            progress(done, len(layers))
        for module in base.modules():
            if isinstance(module, ModulesToSaveWrapper):
                _like_the_original(module)
        plain: PreTrainedModel = model.merge_and_unload()  # type: ignore[operator, assignment]  # takes the wrappers away
    embeddings, head = plain.get_input_embeddings(), plain.get_output_embeddings()
    text = plain.config.get_text_config()
    if getattr(text, "tie_word_embeddings", False) and head is not None:
        one = torch.equal(embeddings.weight, head.weight)  # type: ignore[union-attr, arg-type]
        text.tie_word_embeddings = plain.config.tie_word_embeddings = one
    return plain.eval()


def _fold_layer(name: str, layer: BaseTunerLayer) -> None:
    weight: Any = layer.get_base_layer().weight
    dtype = weight.dtype
    weight.data = weight.data.float()
    try:
        layer.merge(safe_merge=True)
    except ValueError as error:
        raise UserError(f"{name}: {' '.join(str(error).split())}") from None
    merged: Any = layer.get_base_layer().weight
    merged.data = merged.data.to(dtype)


def _separate_ends(base: Any) -> None:
    """Of a tied matrix with an adapter in one place only, the other place must not get it too."""
    embeddings, head = base.get_input_embeddings(), base.get_output_embeddings()
    for one in (embeddings, head):
        if isinstance(one, BaseTunerLayer) and not isinstance(one, TrainableTokensLayer):
            inner: Any = one.get_base_layer()
            inner.weight = torch.nn.Parameter(inner.weight.detach().clone(), requires_grad=False)


def _like_the_original(wrapper: ModulesToSaveWrapper) -> None:
    """Whole modules are trained in fp32; in the merged model they are in what the base has there."""
    original = dict(wrapper.original_module.named_parameters())
    for module in wrapper.modules_to_save.values():
        for name, parameter in module.named_parameters():
            parameter.data = parameter.data.to(original[name].dtype)
