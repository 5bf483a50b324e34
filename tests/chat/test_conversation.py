"""History: kept, cut at its beginning when the context is full, never without a word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from toolkit.chat.conversation import Conversation
from toolkit.chat.speaker import Choice, Speaker
from toolkit.errors import UserError


@dataclass(frozen=True)
class Words:
    """Stands for `Asking`: a token for each word, and two more for the generation prompt."""

    def chat(self, messages: list[dict[str, Any]], tools: Any = None, where: str = "") -> list[int]:
        return [7] * (2 + sum(len(message["content"].split()) for message in messages))


def speaker(context: int | None) -> Speaker:
    return Speaker("fine-tuned", None, None, (), context)  # type: ignore[arg-type]


def talk_of(rounds: int) -> Conversation:
    """Rounds of a message of three words and an answer of two."""
    talk = Conversation()
    for _ in range(rounds):
        talk.messages += [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d e"}]
    return talk


@pytest.mark.parametrize(
    ("context", "new_tokens", "dropped", "tokens"),
    [
        (None, 100, 0, 25),  # 4 x 5 + 3 + 2
        (35, 10, 0, 25),
        (34, 10, 1, 20),
        (29, 10, 2, 15),
        (20, 4, 2, 15),
        (20, 1000, 3, 10),  # half of the context stays free, not a thousand tokens
        (11, 4, 4, 5),
        (6, 4, 4, 5),  # one token is left for the answer
    ],
)
def test_only_as_many_of_the_oldest_rounds_as_needed_are_dropped(context, new_tokens, dropped, tokens) -> None:
    talk, choice = talk_of(4), Choice(max_new_tokens=new_tokens)
    ids, count = talk.ask("a b c", Words(), speaker(context), choice)  # type: ignore[arg-type]
    assert (count, len(ids)) == (dropped, tokens)
    assert len(talk.messages) == 2 * (4 - dropped) + 1
    assert talk.messages[-1] == {"role": "user", "content": "a b c"}
    assert talk.messages[0]["role"] == "user"


def test_a_message_that_does_not_fit_alone_is_refused_and_nothing_is_lost() -> None:
    talk = talk_of(2)
    before = list(talk.messages)
    with pytest.raises(UserError, match="5 tokens do not fit the model's context of 5"):
        talk.ask("a b c", Words(), speaker(5), Choice())  # type: ignore[arg-type]
    assert talk.messages == before
