"""What rendering a few made-up conversations shows about a chat template."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from toolkit.data.controls import closers, control_tokens, snap, special_tokens
from toolkit.data.examples import Message
from toolkit.data.render import PLAIN, Dialect, common_prefix, render_as, render_marks_as

# Texts that no template holds, each with a first and a last character of its own.
_USER, _ANSWER, _USER_2, _ANSWER_2, _VALUE = (f"{chr(0xE000 + 2 * i)}x{chr(0xE001 + 2 * i)}" for i in range(5))
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string", "description": "A key."}}},
    },
}


@dataclass(frozen=True)
class Profile:
    """What probing shows about one tokenizer and template.

    dialect: the form of messages it takes. generation_prompt: what `add_generation_prompt` appends, "" if nothing.
    turn_end: the control tokens that follow the last assistant turn, in order. call_end: the one that follows an
    assistant turn that calls a tool, where it is another, else "". enders: all tokens that may close a turn.
    openers: where turns have no end of their own, the token that opens the turn of a role instead, which is then how
    the model stops. controls: matches any added token. marked: the template has `{% generation %}` marks and they mark
    what they should.
    """

    dialect: Dialect
    generation_prompt: str
    turn_end: tuple[str, ...]
    call_end: str
    enders: frozenset[str]
    openers: dict[str, str]
    controls: re.Pattern[str]
    marked: bool


@dataclass(frozen=True)
class _Speaker:
    """Renders with one template."""

    tokenizer: PreTrainedTokenizerBase
    template: str
    dialect: Dialect

    def __call__(self, messages: list[Message], tools: list[Any] | None = None, prompt: bool = False) -> str:
        return render_as(self.tokenizer, self.template, messages, tools, self.dialect, prompt)


def probe(tokenizer: PreTrainedTokenizerBase, template: str) -> Profile:
    """What there is to know of `template`; empty fields where it refuses the probe, so each row is judged by itself."""
    controls = control_tokens(tokenizer)
    speak = _Speaker(tokenizer, template, _dialect(tokenizer, template))
    asked = _conversation(_USER)
    prompt, enders, turn_end, openers = "", [tokenizer.eos_token or ""], [], {}
    try:
        without, with_prompt = speak(asked), speak(asked, prompt=True)
        prompt = with_prompt[snap(common_prefix(without, with_prompt), with_prompt, controls) :]
        closed = speak(_conversation(_USER, _ANSWER))
        if _USER in without and _ANSWER in closed:  # else each row is judged by itself
            turn_end = closers(closed[closed.rfind(_ANSWER[-1]) + 1 :], controls)
            # What closes a user turn may close an earlier assistant turn too. If it is all there is before the answer,
            # it is the answer's header instead.
            between = closed[closed.rfind(_USER[-1]) + 1 : closed.find(_ANSWER[0])]
            ends = closers(without[without.rfind(_USER[-1]) + 1 :], controls)
            enders += ends[:1] if len(controls.findall(between)) > 1 else []
            openers = {} if turn_end else _openers(speak, controls)
    except Exception:  # a template that refuses the probe is judged row by row
        pass
    call_end = _call_end(speak, controls, openers, (*turn_end, *openers.values(), tokenizer.eos_token))
    marked = "endgeneration" in template and _marks_are_sound(speak)
    every = frozenset([*enders, *turn_end, call_end]) - {""}
    return Profile(speak.dialect, prompt, tuple(turn_end), call_end, every, openers, controls, marked)


def _conversation(*texts: str) -> list[Message]:
    """`texts`, said by user and assistant in turn."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def _call_conversation() -> list[Message]:
    call = {"type": "function", "id": "probe00001", "function": {"name": "probe", "arguments": {"key": _VALUE}}}
    messages = _conversation(_USER, "", "", _ANSWER_2)
    messages[1]["tool_calls"] = [call]
    messages[2] = {"role": "tool", "name": "probe", "tool_call_id": "probe00001", "content": _USER_2}
    return messages


def _dialect(tokenizer: PreTrainedTokenizerBase, template: str) -> Dialect:
    """The simplest form in which the template renders what it is given."""

    def shows(dialect: Dialect, messages: list[Message], tools: list[Any] | None, *texts: str) -> bool:
        try:
            text = render_as(tokenizer, template, messages, tools, dialect)
        except Exception:  # refuses this form
            return False
        return all(part in text for part in texts)

    chat = _conversation(_USER, _ANSWER)
    forms = [Dialect(parts=parts) for parts in (False, True)]
    best = next((form for form in forms if shows(form, chat, None, _USER, _ANSWER)), PLAIN)
    forms = [Dialect(best.parts, json_arguments) for json_arguments in (False, True)]
    calls = _call_conversation()
    return next((form for form in forms if shows(form, calls, [_PROBE_TOOL], _VALUE)), best)


def _openers(speak: _Speaker, controls: re.Pattern[str]) -> dict[str, str]:
    """The tokens that open a user's and a tool's turn, if they tell that the assistant's is over."""
    text = speak(_conversation(_USER, _ANSWER, _USER_2, _ANSWER_2))
    own = controls.findall(text[text.find(_USER[-1]) + 1 : text.find(_ANSWER[0])])
    found = {"user": closers(text[text.find(_ANSWER[-1]) + 1 : text.find(_USER_2[0])], controls)[:1]}
    if not found["user"] or found["user"][0] not in text[: text.find(_USER[0])]:
        return {}
    try:
        calls = _call_conversation()
        upto, whole = speak(calls[:2], [_PROBE_TOOL]), speak(calls, [_PROBE_TOOL])
        found["tool"] = closers(whole[len(upto) :], controls)[:1] if whole.startswith(upto) else []
    except Exception:  # a template without tools
        pass
    # A token that opens every turn would also stop an assistant that goes on.
    return {role: token for role, tokens in found.items() for token in tokens if token not in own}


def _call_end(
    speak: _Speaker, controls: re.Pattern[str], openers: dict[str, str], known: tuple[str | None, ...]
) -> str:
    """The control token after a turn that ends in a tool call, if that is another than after an answer."""
    if openers:
        return ""
    try:
        text = speak(_call_conversation()[:2], [_PROBE_TOOL]).rstrip()
    except Exception:  # a template without tools
        return ""
    last = [m.group() for m in controls.finditer(text, text.rfind(_VALUE) + len(_VALUE)) if m.end() == len(text)]
    found = last[0] if last and _VALUE in text else ""
    return found if found not in known and found in special_tokens(speak.tokenizer) else ""


def _marks_are_sound(speak: _Speaker) -> bool:
    """True if the marks hold whole answers and no question; those inside a macro or filter come out displaced."""
    texts = (_USER, _ANSWER, _USER_2, _ANSWER_2)
    try:
        text, spans = render_marks_as(speak.tokenizer, speak.template, _conversation(*texts), None, speak.dialect)
    except Exception:  # judged row by row, by differences
        return False
    marked = "|".join(text[start:end] for start, end in spans)
    whole = [c for c in texts[1::2] if c in marked]
    foreign = set("".join(texts)) - set("".join(whole)) - {"x"}
    return bool(whole) and not foreign & set(marked)
