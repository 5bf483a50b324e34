"""The base of a fine-tuned model, as it was before training, to be asked the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from transformers import PreTrainedModel

from toolkit.adapters.adapted import ADAPTER
from toolkit.chat.speaker import Speaker, speaker_of
from toolkit.config import ModelConfig
from toolkit.errors import UserError
from toolkit.finished import Place, base_of, recorded_in
from toolkit.models import check_model_source, embedding_rows, load_config, load_model, load_tokenizer
from toolkit.new_tokens import fill_rows

# Ways to begin a LoRA that take its part out of the base's weights, which are then no longer the base's.
_MOVES_BASE = ("pissa", "olora", "corda")


def base_config(place: Place) -> ModelConfig:
    """Which model was trained. Raises UserError where that is not known, or was none: random weights."""
    if place.kind == "adapter":
        return base_of(place.path)
    recorded = recorded_in(place)
    if recorded is None or not recorded.model.name_or_path:
        raise UserError(
            f"--compare: {place.path} has no config.yaml of a run beside it, so what it was made of is not known; "
            "give the run's folder"
        )
    of = recorded.model
    if of.random_init:
        raise UserError("--compare: that run began with random weights (model.random_init); there is no base")
    return of


def base_speaker(place: Place, tuned: Speaker, *, dtype: str | None) -> Speaker:
    """The base beside `tuned`: its own model without the adapter where that is the same, else loaded besides.

    It reads with the fine-tuned model's tokenizer and template. Tokens that were added begin as the mean of the others, as in
    training, and it cannot say them. Raises UserError for a base that is not known or not there.
    """
    of = base_config(place)
    check_model_source(of, frozen=True)
    rows = int(load_config(of).get_text_config().vocab_size)
    if isinstance(tuned.model, PeftModel) and _same_base(tuned.model, rows):
        model = tuned.model
    else:
        model = load_model(replace(of, dtype=dtype or of.dtype), seed=0, frozen=True)
        wanted = embedding_rows(tuned.model)
        if wanted > rows:
            model.resize_token_embeddings(wanted, mean_resizing=False)
    fill_rows([_plain(model.get_input_embeddings()), _plain(model.get_output_embeddings())], rows)
    own = load_tokenizer(replace(of, new_tokens=[], new_special_tokens=[])).get_vocab().values()
    # Of a padded vocabulary, new tokens have rows that the base has too, without a token.
    added = set(tuned.tokenizer.get_vocab().values()) - set(own)
    absent = tuple(sorted(added | set(range(rows, embedding_rows(tuned.model)))))
    if model is tuned.model:
        return replace(tuned, name="base", without_adapter=True, absent=absent)
    return replace(speaker_of("base", model, tuned.tokenizer), stops=tuned.stops, absent=absent)


def _same_base(model: PeftModel, rows: int) -> bool:
    """True when `model` without its adapter is the base: nothing was moved into the adapter, and the adapter's file has not
    brought embeddings in the place of the base's, as peft's does when tokens were added without training their rows alone."""
    config: Any = model.peft_config[ADAPTER]
    if str(getattr(config, "init_lora_weights", "")).lower().startswith(_MOVES_BASE) or config.is_prompt_learning:
        return False
    if getattr(model, "start_of_adapter", None):
        return False
    return embedding_rows(cast(PreTrainedModel, model)) <= rows or bool(
        getattr(config, "trainable_token_indices", None) or getattr(config, "modules_to_save", None)
    )


def _plain(module: Any) -> Any:
    """The base's own module under what peft has put around it."""
    while isinstance(module, (AuxiliaryTrainingWrapper, BaseTunerLayer)):
        module = module.get_base_layer() if isinstance(module, BaseTunerLayer) else module.original_module
    return module
