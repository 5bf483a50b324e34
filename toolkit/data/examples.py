"""What rows of any shape become: a conversation, a prompt with its completion, plain text, or a pair of answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True)
class Chat:
    """A conversation. `learnt[i]`: message i is learnt; None: the whole rendered text is."""

    messages: list[Message]
    tools: list[Any] | None
    learnt: tuple[bool, ...] | None


@dataclass(frozen=True)
class Completion:
    """Plain text in two parts; only the completion is learnt, or both with `learn_prompt`."""

    prompt: str
    completion: str
    learn_prompt: bool = False


@dataclass(frozen=True)
class Text:
    """Plain text, learnt whole."""

    text: str


@dataclass(frozen=True)
class Preference:
    """Two answers to one prompt, the better first. Both share the prompt, message for message."""

    chosen: Chat | Completion
    rejected: Chat | Completion


@dataclass(frozen=True)
class Judged:
    """One answer, which is desirable or not."""

    answer: Chat | Completion
    desirable: bool


Example = Chat | Completion | Text | Preference | Judged


def sides_of(example: Example) -> list[Chat | Completion | Text]:
    """What is tokenized of an example: itself, the answer that is judged, or the two sides of a pair, the better first."""
    if isinstance(example, Judged):
        return [example.answer]
    return [example.chosen, example.rejected] if isinstance(example, Preference) else [example]
