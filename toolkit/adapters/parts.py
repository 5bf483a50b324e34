"""What an adapter on a model consists of, counted and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer

from toolkit.adapters.adapted import ADAPTER, numbers
from toolkit.adapters.methods import method_of


@dataclass(frozen=True)
class AdapterParts:
    """modules: how many have an adapter; ends: the last parts of their names. whole: modules trained whole beside it; tokens:
    how many tokens whose embeddings are. trained, parameters: numbers of the adapter, and of all."""

    method: str
    modules: int
    ends: tuple[str, ...]
    whole: tuple[str, ...]
    tokens: int
    trained: int
    parameters: int

    def describe(self) -> str:
        """One line for people."""
        more = [f"{', '.join(self.whole)} whole"] if self.whole else []
        more += [f"the embeddings of {self.tokens} tokens"] if self.tokens else []
        return (
            f"adapter: {self.method} on {self.modules} modules ({', '.join(self.ends)})"
            + (f", and {', '.join(more)}" if more else "")
            + f": {self.trained:,} trainable parameters, {self.trained / self.parameters:.2%} of {self.parameters:,}"
        )


def parts_of(model: PeftModel) -> AdapterParts:
    """Of the adapter that is on `model`, by what peft made of it."""
    made: Any = model.peft_config[ADAPTER]
    names = [name for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]
    adapted = [name for name in names if not name.endswith("token_adapter")]
    rows = getattr(made, "trainable_token_indices", None) or {}
    sizes = [(numbers(p), p.requires_grad) for p in model.parameters()]
    return AdapterParts(
        str(method_of(made)),
        len(adapted),
        _ends(adapted),
        _ends(sorted(made.modules_to_save or ())),
        len({index for part in (rows.values() if isinstance(rows, dict) else [rows]) for index in part}),
        sum(count for count, trains in sizes if trains),
        sum(count for count, _ in sizes),
    )


def _ends(names: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.rsplit(".", 1)[-1] for name in names))
