"""What was said so far between a user and one model, cut at its beginning when the model's context is full."""

from __future__ import annotations

from dataclasses import dataclass, field

from toolkit.chat.asking import Asking
from toolkit.chat.speaker import Choice, Speaker
from toolkit.data.examples import Message
from toolkit.errors import UserError


@dataclass
class Conversation:
    """Messages of user and assistant in turn, the user's first."""

    messages: list[Message] = field(default_factory=list)

    def ask(self, text: str, asking: Asking, speaker: Speaker, choice: Choice) -> tuple[list[int], int]:
        """Add the user's message; the prompt, and how many rounds (a message and its answer) no longer fit and were dropped.

        Half of the context at most is kept free for the answer. Raises UserError, the message not added, where it does not
        fit by itself.
        """
        kept = [*self.messages, {"role": "user", "content": text}]
        dropped = 0
        ids = asking.chat(kept)
        if speaker.context is not None:
            reserved = min(choice.max_new_tokens, speaker.context // 2)
            while len(ids) + reserved > speaker.context and len(kept) > 1:
                kept, dropped = kept[2:], dropped + 1
                ids = asking.chat(kept)
        check_room(ids, speaker, choice)
        self.messages = kept
        return ids, dropped

    def heard(self, text: str) -> None:
        """Add the answer to the last message."""
        self.messages.append({"role": "assistant", "content": text})

    def forget_last(self) -> None:
        """Take the last message back, which was not answered."""
        self.messages.pop()


def check_room(ids: list[int], speaker: Speaker, choice: Choice) -> None:
    """Raise UserError for a prompt after which there is no room for an answer."""
    if speaker.room(len(ids), choice) < 1:
        raise UserError(f"{len(ids)} tokens do not fit the model's context of {speaker.context}; shorten the message")
