"""One tokenizer's chat template: finding it, rendering with it, and what probing shows about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from toolkit.data.rows import RowError
from toolkit.errors import UserError

Span = tuple[int, int]
Message = dict[str, Any]

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
            {{- message['content'] + '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
_BUILT_IN = {"chatml": CHATML}


@dataclass(frozen=True)
class Profile:
    """What probing shows about one tokenizer and template.

    generation_prompt: what `add_generation_prompt` appends, "" if nothing. turn_end: the control tokens that follow the
    last assistant turn, in order. enders: all tokens that may close a turn. controls: matches any added token.
    marked: the template has `{% generation %}` marks and they mark what they should.
    """

    generation_prompt: str
    turn_end: tuple[str, ...]
    enders: frozenset[str]
    controls: re.Pattern[str]
    marked: bool


# Probing takes several renderings; a tokenizer is asked thousands of times. The template is kept to notice a new one.
_PROFILES: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[object, Profile]] = WeakKeyDictionary()
_CONTROLS: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, re.Pattern[str]]] = WeakKeyDictionary()


def require_chat_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `UserError` if conversations cannot be rendered with this tokenizer."""
    if not tokenizer.chat_template:
        raise UserError("tokenizer has no chat template; set data.chat_template: FILE or NAME (chatml)")


def load_chat_template(spec: str) -> str:
    """The text of the template that `spec`, a file or a built-in name, stands for. Raises `UserError`."""
    if spec in _BUILT_IN:
        return _BUILT_IN[spec]
    path = Path(spec).expanduser()
    if not path.is_file():
        names = ", ".join(sorted(_BUILT_IN))
        raise UserError(
            f"data.chat_template: no file {path.resolve()}, and no template named {spec!r} (known: {names})"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"data.chat_template: {path} is not valid UTF-8 (byte {error.start}); convert it") from None
    if not text.strip():
        raise UserError(f"data.chat_template: {path} is empty")
    return text


def render(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], tools: list[Any] | None, prompt: bool = False
) -> str:
    """The conversation as text; with `prompt`, followed by the template's generation prompt."""
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=prompt)
    assert isinstance(text, str)
    return text


def render_or_explain(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[Message],
    tools: list[Any] | None,
    where: str,
    prompt: bool = False,
) -> str:
    """`render`, with whatever the template raises told as a row error: the roles seen and the template's own words."""
    try:
        return render(tokenizer, messages, tools, prompt)
    except Exception as error:  # a template is a program of its own: it may raise anything
        roles = ", ".join(m["role"] for m in messages)
        words = " ".join(str(error).split())[:200]
        advice = "change the roles or set another data.chat_template"
        raise RowError(
            where, "the chat template refuses this row", f"roles: {roles}; it says: {words}", advice
        ) from None


def template_profile(tokenizer: PreTrainedTokenizerBase, tools: list[Any] | None = None) -> Profile:
    """Probe the tokenizer's template (once; again when the template or the added tokens change)."""
    template = tokenizer.get_chat_template(None, tools)
    key = (template, len(tokenizer))
    cached = _PROFILES.get(tokenizer)
    if cached is None or cached[0] != key:
        cached = (key, _probe(tokenizer, template))
        _PROFILES[tokenizer] = cached
    return cached[1]


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """A pattern of all added and special tokens (longest first, as the tokenizer takes them)."""
    cached = _CONTROLS.get(tokenizer)
    if cached is not None and cached[0] == len(tokenizer):
        return cached[1]
    texts = {str(token) for token in tokenizer.added_tokens_decoder.values()} | set(tokenizer.all_special_tokens)
    longest_first = sorted((text for text in texts if text), key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(text) for text in longest_first) or "(?!)")
    _CONTROLS[tokenizer] = (len(tokenizer), pattern)
    return pattern


def _probe(tokenizer: PreTrainedTokenizerBase, template: str) -> Profile:
    controls = control_tokens(tokenizer)
    user, answer = "\ue000q\ue001", "\ue002a\ue003"
    asked: list[Message] = [{"role": "user", "content": user}]
    answered = [*asked, {"role": "assistant", "content": answer}]
    prompt, enders, turn_end = "", [tokenizer.eos_token or ""], []
    try:
        without, with_prompt = render(tokenizer, asked, None), render(tokenizer, asked, None, prompt=True)
        prompt = with_prompt[snap(common_prefix(without, with_prompt), with_prompt, controls) :]
        closed = render(tokenizer, answered, None)
        if user not in without or answer not in closed:  # such as a template for lists of parts
            return Profile(prompt, (), frozenset(enders) - {""}, controls, False)
        turn_end = _closers(closed[closed.rfind(answer[-1]) + 1 :], controls)
        # What closes a user turn may close an earlier assistant turn too. If it is all there is before the answer, it
        # is the answer's header instead.
        between = closed[closed.rfind(user[-1]) + 1 : closed.find(answer[0])]
        closers = _closers(without[without.rfind(user[-1]) + 1 :], controls)
        enders += closers[:1] if len(controls.findall(between)) > 1 else []
    except Exception:  # a template that refuses the probe is judged row by row
        pass
    marked = "endgeneration" in template and _marks_are_sound(tokenizer, template)
    return Profile(prompt, tuple(turn_end), frozenset([*enders, *turn_end]) - {""}, controls, marked)


def _closers(tail: str, controls: re.Pattern[str]) -> list[str]:
    """The run of control tokens that `tail` begins with, after optional white space."""
    position, found = len(tail) - len(tail.lstrip()), []
    while match := controls.match(tail, position):
        found.append(match.group())
        position = match.end()
    return found


def _marks_are_sound(tokenizer: PreTrainedTokenizerBase, template: str) -> bool:
    """True if the marks hold whole answers and no question; those inside a macro or filter come out displaced."""
    roles = ("user", "assistant", "user", "assistant")
    texts = [f"{chr(0xE000 + i)}x{chr(0xE000 + i)}" for i in range(len(roles))]
    probe: list[Message] = [{"role": r, "content": c} for r, c in zip(roles, texts, strict=True)]
    try:
        text, spans = render_marked(tokenizer, template, probe, None)
    except Exception:  # judged row by row, by differences
        return False
    marked = "|".join(text[start:end] for start, end in spans)
    whole = [c for c in texts[1::2] if c in marked]
    foreign = set("".join(texts)) - set("".join(whole)) - {"x"}
    return bool(whole) and not foreign & set(marked)


def render_marked(
    tokenizer: PreTrainedTokenizerBase, template: str, messages: list[Message], tools: list[Any] | None
) -> tuple[str, list[Span]]:
    """The conversation as text, and the character ranges within `{% generation %}` marks."""
    options: dict[str, Any] = {"return_assistant_tokens_mask": True, **tokenizer.special_tokens_map}
    # Declared to return a string, it returns the texts and, for each, its ranges.
    rendered: Any = render_jinja_template([messages], tools=tools, chat_template=template, **options)
    spans: list[Span] = []
    for start, end in rendered[1][0]:
        if spans and start == spans[-1][1]:  # one turn in two marks, such as its text and its end
            start = spans.pop()[0]
        spans.append((start, end))
    return rendered[0][0], spans


def snap(position: int, text: str, controls: re.Pattern[str]) -> int:
    """`position`, or the start of the control token it would cut in two."""
    inside = (match for match in controls.finditer(text) if match.start() < position < match.end())
    return next((match.start() for match in inside), position)


def common_prefix(a: str, b: str) -> int:
    """The number of leading characters `a` and `b` share, by bisection: comparing slices is fast, a loop is not."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
