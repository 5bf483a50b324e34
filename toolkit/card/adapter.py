"""What the card says of an adapter."""

from __future__ import annotations

from typing import Any

from peft import PeftModel

from toolkit.adapters.adapted import ADAPTER
from toolkit.adapters.methods import METHODS
from toolkit.adapters.parts import parts_of
from toolkit.card.facts import AdapterFacts
from toolkit.card.origin import without_home
from toolkit.config import RunConfig


def adapter_facts(model: PeftModel, config: RunConfig) -> AdapterFacts:
    """The adapter on `model`, by what peft made of it."""
    made: Any = model.peft_config[ADAPTER]
    parts = parts_of(model)
    method = parts.method
    sizes = {name: getattr(made, name, None) for name in METHODS[method].sizes(config.adapter)}
    beside = [f"`{name}`, trained whole" for name in parts.whole]
    if parts.tokens:
        beside.append(f"the embeddings of {parts.tokens} tokens")
    kept = {
        name: value for name, value in sizes.items() if value and isinstance(value, (int, float)) and value is not True
    }
    went_on = config.as_written.adapter.name_or_path
    continued = None if went_on is None else without_home(went_on)
    converted = METHODS[method].moves_base and continued is None
    return AdapterFacts(method, kept, parts.ends, tuple(beside), continued, converted)
