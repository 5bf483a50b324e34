"""From messages to the prompt that a model was trained to answer: its run's template and the run's choices about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from toolkit.config import DataConfig
from toolkit.data.chat import ControlTokens, SystemPolicy, prompt_ids
from toolkit.data.examples import Chat, Completion, Message
from toolkit.data.rows import RowError
from toolkit.errors import UserError


@dataclass(frozen=True)
class Asking:
    """How prompts are made. control_tokens, system_policy: as `data.` of the run has them; system: --system."""

    tokenizer: PreTrainedTokenizerBase
    control_tokens: ControlTokens = "text"
    system_policy: SystemPolicy = "keep"
    system: str | None = None

    @property
    def has_template(self) -> bool:
        """False for a model that continues plain text."""
        return bool(self.tokenizer.chat_template)

    def chat(self, messages: list[Message], tools: list[Any] | None = None, where: str = "") -> list[int]:
        """Ids of the conversation and the template's generation prompt. Raises RowError where the template refuses it."""
        opened = [] if self.system is None else [{"role": "system", "content": self.system}]
        # What follows the prompt is cut off there; only its place is needed.
        example = Chat([*opened, *messages, {"role": "assistant", "content": ""}], tools, None)
        asked = prompt_ids(
            example,
            self.tokenizer,
            where=where,
            control_tokens=self.control_tokens,
            system_policy=self.system_policy,
        )
        assert asked is not None, "there is a message before the answer"
        return asked[0]

    def text(self, prompt: str) -> list[int]:
        """Ids of plain text to be continued; none for an empty one."""
        asked = prompt_ids(Completion(prompt, ""), self.tokenizer)
        return [] if asked is None else asked[0]


def asking_of(
    tokenizer: PreTrainedTokenizerBase, data: DataConfig, system: str | None, say: Callable[[str], None]
) -> Asking:
    """As the data section of the run's config says; a system text goes where the template lets it.

    Raises UserError for a system text that has no place: no template, or one that refuses it in every form.
    """
    asking = Asking(tokenizer, data.control_tokens, data.system_policy, system=system)
    if system is None:
        return asking
    if not asking.has_template:
        raise UserError("--system: this model has no chat template, so there is no place for a system text")
    probe: list[Message] = [{"role": "user", "content": "?"}]
    try:
        asking.chat(probe, where="--system")
        return asking
    except RowError as refused:
        folded = replace(asking, system_policy="fold")
        try:
            folded.chat(probe)
        except RowError:
            raise refused from None
    say("the chat template refuses a system message; its text goes into the first user message")
    return folded
