"""Fine-tuning on Hugging Face Accelerate: a recipe says what to learn, a layout says how to run it.

What a recipe of one's own needs can be imported from here (docs/own_recipe.md). Each name is looked up in its module when it is
first used, so that importing this package stays quick.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.config import RunConfig as RunConfig
    from toolkit.config import option as option
    from toolkit.data.collate import MicroBatch as MicroBatch
    from toolkit.errors import UserError as UserError
    from toolkit.errors import exit_with_message as exit_with_message
    from toolkit.models import load_tokenizer as load_tokenizer
    from toolkit.objectives import Objective as Objective
    from toolkit.objectives import ObjectiveOutput as ObjectiveOutput
    from toolkit.objectives.head import OutputHead as OutputHead
    from toolkit.objectives.head import hidden_states as hidden_states
    from toolkit.objectives.log_probs import answer_log_probs as answer_log_probs
    from toolkit.objectives.log_probs import target_log_probs as target_log_probs
    from toolkit.parsing import parse as parse
    from toolkit.run import fine_tune as fine_tune
    from toolkit.stages import answers_of as answers_of
    from toolkit.stages import begin as begin
    from toolkit.stages import data_of as data_of
    from toolkit.stages import finished_answers_of as finished_answers_of
    from toolkit.stages import leave as leave
    from toolkit.stages import model_of as model_of

__version__ = "0.1.0"

_HOME = {
    "RunConfig": "config",
    "option": "config",
    "parse": "parsing",
    "UserError": "errors",
    "exit_with_message": "errors",
    "begin": "stages",
    "load_tokenizer": "models",
    "data_of": "stages",
    "model_of": "stages",
    "fine_tune": "run",
    "answers_of": "stages",
    "finished_answers_of": "stages",
    "leave": "stages",
    "MicroBatch": "data.collate",
    "Objective": "objectives",
    "ObjectiveOutput": "objectives",
    "OutputHead": "objectives.head",
    "hidden_states": "objectives.head",
    "target_log_probs": "objectives.log_probs",
    "answer_log_probs": "objectives.log_probs",
}
__all__ = sorted(_HOME)

# CPU threads that wait for each other spin for some microseconds and then sleep. Without a limit they spin for
# milliseconds, which makes a step many times slower as soon as anything else runs on the machine; without any spinning it
# is slower on an idle one. Read by the OpenMP runtime when torch loads it, so it is set before.
os.environ.setdefault("GOMP_SPINCOUNT", "100000")

# peft imports bitsandbytes wherever it is installed, which then warns of optional kernels that it does not find, also in
# runs without a quantized weight.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def __getattr__(name: str) -> Any:
    """A name of the interface, from the module that it lives in."""
    if name not in _HOME:
        raise AttributeError(f"module 'toolkit' has no attribute {name!r}")
    return getattr(importlib.import_module(f"toolkit.{_HOME[name]}"), name)
