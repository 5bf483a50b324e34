"""A conversation line by line: answers on standard output, everything else on standard error."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from toolkit.chat.asking import Asking
from toolkit.chat.conversation import Conversation, check_room
from toolkit.chat.display import Screen
from toolkit.chat.speaker import Choice, Speaker, answer
from toolkit.errors import UserError

HELP = "/reset begins anew, /quit or Ctrl-D ends, Ctrl-C stops an answer; a line is a message"
_COMMAND = re.compile(r"/\w*")


def converse(speakers: list[Speaker], asking: Asking, choice: Choice, screen: Screen) -> None:
    """Read lines until they end, and let each speaker answer each of them, in a conversation of its own."""
    talks = [Conversation() for _ in speakers]
    for line in _lines(screen):
        if line in ("/quit", "/exit"):
            return
        if line == "/reset":
            talks = [Conversation() for _ in speakers]
            screen.say("the conversation begins anew")
        elif line == "/help":
            screen.say(HELP)
        elif _COMMAND.fullmatch(line):
            screen.say(f"there is no command {line}; {HELP}")
        elif line:
            _round(line, speakers, talks, asking, choice, screen)


def _round(
    line: str, speakers: list[Speaker], talks: list[Conversation], asking: Asking, choice: Choice, screen: Screen
) -> None:
    """One message and its answers. Ctrl-C ends those, not the conversation."""
    before = [talk.messages for talk in talks]
    try:
        prompts = [_prompt(line, s, talk, asking, choice, screen) for s, talk in zip(speakers, talks, strict=True)]
    except UserError as error:
        for talk, messages in zip(talks, before, strict=True):
            talk.messages = messages
        screen.say(f"not sent: {error}")
        return
    with interruptible() as interrupted, screen.answers([speaker.name for speaker in speakers]) as writers:
        for speaker, talk, ids, write in zip(speakers, talks, prompts, writers, strict=True):
            if interrupted():
                if asking.has_template:
                    talk.forget_last()
                continue
            # By the round, so that a conversation can be had again whatever was interrupted.
            torch.manual_seed(choice.seed + len(talk.messages))
            said = answer(speaker, ids, choice, write, interrupted)
            if asking.has_template and (said.text or said.how != "interrupted"):
                talk.heard(said.text)
            elif asking.has_template:
                talk.forget_last()
            screen.after(_remark(speaker, said.text, said.how, len(ids), choice))


def _prompt(
    line: str, speaker: Speaker, talk: Conversation, asking: Asking, choice: Choice, screen: Screen
) -> list[int]:
    if not asking.has_template:
        ids = asking.text(line)
        check_room(ids, speaker, choice)
        return ids
    ids, dropped = talk.ask(line, asking, speaker, choice)
    if dropped:
        whose = f" of {speaker.name}" if screen.several else ""
        what = "the oldest message and its answer" if dropped == 1 else f"the {dropped} oldest messages and answers"
        screen.say(f"the conversation{whose} is longer than the context of {speaker.context} tokens: dropped {what}")
    return ids


def _remark(speaker: Speaker, text: str, how: str, prompt: int, choice: Choice) -> str:
    """What the reader should know of an answer besides its text; mostly nothing."""
    if how == "interrupted":
        return "stopped"
    if how == "length" and speaker.room(prompt, choice) < choice.max_new_tokens:
        return f"cut off: the context of {speaker.context} tokens is full"
    if how == "length":
        return f"cut off after --max_new_tokens {choice.max_new_tokens}"
    return "" if text.strip() else "an empty answer"


def _lines(screen: Screen) -> Iterator[str]:
    """Lines of standard input without the white space around them; a prompt only where a person types."""
    if not sys.stdin.isatty():
        reconfigure: Any = getattr(sys.stdin, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
        for line in sys.stdin:
            yield line.strip()
        return
    with suppress(ImportError):
        import readline  # noqa: F401  # keys to edit a line and to find earlier ones
    while True:
        try:
            yield input(screen.prompt).strip()
        except EOFError:
            screen.say("")
            return
        except KeyboardInterrupt:
            screen.say("\n/quit or Ctrl-D ends")


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed meanwhile; a second one raises KeyboardInterrupt at once."""
    pressed = threading.Event()

    def note(number: int, frame: Any) -> None:
        """The handler of SIGINT."""
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    earlier = signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, earlier)
