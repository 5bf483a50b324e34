"""A model that answers: its tokens to stop at, its context, and greedy or sampled answers, one streamed or many at once."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from peft import PeftModel
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from toolkit.chat.stream import TextStream, text_of
from toolkit.data.chat import turn_end_ids


@dataclass(frozen=True)
class Choice:
    """How an answer is chosen. temperature, top_p: None takes the model's own; both only matter when sampling."""

    max_new_tokens: int = 256
    do_sample: bool = False
    temperature: float | None = None
    top_p: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Speaker:
    """A model on its device, in eval mode.

    stops: ids that end an answer. context: the longest sequence it was made for, None where unknown. without_adapter: answer
    as its base. absent: ids that the base has no token for, which it cannot say.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stops: tuple[int, ...]
    context: int | None
    without_adapter: bool = False
    absent: tuple[int, ...] = ()

    @property
    def pad(self) -> int:
        """An id to pad with; it is masked, so any would do."""
        own = self.tokenizer.pad_token_id
        return int(own) if own is not None else (self.stops or (0,))[0]

    def room(self, prompt: int, choice: Choice) -> int:
        """Tokens that an answer to a prompt of so many tokens may have; none where the prompt fills the context."""
        return choice.max_new_tokens if self.context is None else min(choice.max_new_tokens, self.context - prompt)


@dataclass(frozen=True)
class Answer:
    """What was said. how: stop (the model ended it), length (no room for more), interrupted."""

    text: str
    how: str


def speaker_of(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Speaker:
    """The model as its own generation config and architecture describe it, on the accelerator where there is one."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    assert device is not None
    if model.device.type != device.type:
        model.to(device)  # type: ignore[arg-type]
    own = model.generation_config.eos_token_id if model.generation_config is not None else None
    stops = [own] if isinstance(own, int) else list(own or [])
    if not stops:
        ends = turn_end_ids(tokenizer) if tokenizer.chat_template else []
        stops = [one for one in dict.fromkeys([*ends, tokenizer.eos_token_id]) if one is not None]
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return Speaker(name, model.eval(), tokenizer, tuple(stops), context)


@torch.inference_mode()
def answer(
    speaker: Speaker,
    prompt: list[int],
    choice: Choice,
    write: Callable[[str], None],
    interrupted: Callable[[], bool] = lambda: False,
) -> Answer:
    """The answer to one prompt, whose text goes to `write` as it comes. It ends at the next token once `interrupted`."""
    stream = TextStream(speaker.tokenizer, speaker.stops, write)
    limit = speaker.room(len(prompt), choice)
    assert limit > 0, "checked by the caller: the prompt leaves room"
    ids = torch.tensor([prompt], device=speaker.model.device)
    output = _generate(
        speaker,
        ids,
        torch.ones_like(ids),
        choice,
        limit,
        streamer=stream,
        stopping_criteria=StoppingCriteriaList([_Interrupted(interrupted)]),
    )
    found = _answer(speaker, output[0, len(prompt) :].tolist())
    return Answer(found.text, "interrupted") if found.how == "length" and interrupted() else found


@torch.inference_mode()
def answers(
    speaker: Speaker,
    prompts: Sequence[list[int]],
    choice: Choice,
    *,
    batch_size: int,
    advance: Callable[[int], None] = lambda count: None,
) -> list[Answer]:
    """Answers to all prompts, in their order; `advance` is told how many more are done.

    Prompts of like length are padded on the left to one length. A batch has one limit on its answers, so prompts that the
    end of the context leaves less room are in batches of their own.
    """
    order = sorted(range(len(prompts)), key=lambda i: (speaker.room(len(prompts[i]), choice), len(prompts[i])))
    found: dict[int, Answer] = {}
    while order:
        limit = speaker.room(len(prompts[order[0]]), choice)
        part = [i for i in order[:batch_size] if speaker.room(len(prompts[i]), choice) == limit]
        order = order[len(part) :]
        longest = max(len(prompts[i]) for i in part)
        gaps = [longest - len(prompts[i]) for i in part]
        ids = torch.tensor([[speaker.pad] * gap + prompts[i] for gap, i in zip(gaps, part, strict=True)])
        mask = torch.tensor([[0] * gap + [1] * (longest - gap) for gap in gaps])
        device = speaker.model.device
        output = _generate(speaker, ids.to(device), mask.to(device), choice, limit)
        found |= {i: _answer(speaker, row.tolist()) for i, row in zip(part, output[:, longest:], strict=True)}
        advance(len(part))
    return [found[i] for i in range(len(prompts))]


def _answer(speaker: Speaker, ids: list[int]) -> Answer:
    """The text up to the first stop; what follows it in a batch is padding."""
    end = next((at for at, one in enumerate(ids) if one in speaker.stops), None)
    return Answer(text_of(speaker.tokenizer, ids[:end]), "length" if end is None else "stop")


def _generate(
    speaker: Speaker, ids: torch.Tensor, mask: torch.Tensor, choice: Choice, limit: int, **more: Any
) -> torch.Tensor:
    """Token ids `[rows, seq + new]`; what the prompts begin with is in them."""
    config = copy.deepcopy(speaker.model.generation_config) or GenerationConfig()
    config.max_new_tokens, config.max_length = limit, None
    config.min_length = config.min_new_tokens = None
    config.eos_token_id, config.pad_token_id = list(speaker.stops) or None, speaker.pad
    config.num_beams, config.num_return_sequences = 1, 1
    config.do_sample = choice.do_sample
    if choice.do_sample:
        config.temperature, config.top_p = temperature_of(speaker, choice), top_p_of(speaker, choice)
        config.top_k = config.top_k or 0  # without a word transformers would keep the best 50 only
    else:
        config.temperature = config.top_p = config.top_k = None
    if speaker.absent:
        config.suppress_tokens = [*(config.suppress_tokens or []), *speaker.absent]
    adapted = cast(PeftModel, speaker.model)
    with adapted.disable_adapter() if speaker.without_adapter else contextlib.nullcontext():
        return speaker.model.generate(input_ids=ids, attention_mask=mask, generation_config=config, **more)  # type: ignore[operator]


def temperature_of(speaker: Speaker, choice: Choice) -> float:
    """What is sampled with: the choice, else the model's own, else 1."""
    return float(choice.temperature or getattr(speaker.model.generation_config, "temperature", None) or 1.0)


def top_p_of(speaker: Speaker, choice: Choice) -> float:
    """The same for the share of probability that is sampled from."""
    return float(choice.top_p or getattr(speaker.model.generation_config, "top_p", None) or 1.0)


class _Interrupted(StoppingCriteria):
    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **more: Any) -> torch.Tensor:  # type: ignore[override]
        return torch.full((input_ids.shape[0],), self._asked(), device=input_ids.device, dtype=torch.bool)
