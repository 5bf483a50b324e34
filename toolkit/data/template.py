"""One tokenizer's chat template: finding it, rendering with it, and what probing shows about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

from toolkit.data.examples import Message
from toolkit.data.probe import Profile, probe
from toolkit.data.render import Span, render_as, render_marks_as
from toolkit.data.rows import RowError
from toolkit.errors import UserError

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

# Probing takes several renderings; a tokenizer is asked thousands of times. The template is kept to notice a new one.
_PROFILES: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[object, Profile]] = WeakKeyDictionary()


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


def template_profile(tokenizer: PreTrainedTokenizerBase, tools: list[Any] | None = None) -> Profile:
    """Probe the tokenizer's template (once; again when the template or the added tokens change)."""
    template = tokenizer.get_chat_template(None, tools)
    key = (template, len(tokenizer))
    cached = _PROFILES.get(tokenizer)
    if cached is None or cached[0] != key:
        cached = (key, probe(tokenizer, template))
        _PROFILES[tokenizer] = cached
    return cached[1]


def render(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], tools: list[Any] | None, prompt: bool = False
) -> str:
    """The conversation as text; with `prompt`, followed by the template's generation prompt."""
    template = tokenizer.get_chat_template(None, tools)
    return render_as(tokenizer, template, messages, tools, template_profile(tokenizer, tools).dialect, prompt)


def render_marked(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], tools: list[Any] | None
) -> tuple[str, list[Span]]:
    """The conversation as text, and the character ranges within `{% generation %}` marks."""
    template = tokenizer.get_chat_template(None, tools)
    return render_marks_as(tokenizer, template, messages, tools, template_profile(tokenizer, tools).dialect)


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
        detail = f"roles: {roles}; it says: {words}"
        raise RowError(
            where, "the chat template refuses this row", detail, _advice(tokenizer, messages, tools)
        ) from None


def _advice(tokenizer: PreTrainedTokenizerBase, messages: list[Message], tools: list[Any] | None) -> str:
    """What to do about a refusal: folding the system message, where the template would take the rest."""
    folded = fold_system(messages)
    if folded is not messages:
        try:
            render(tokenizer, folded, tools)
            return "set data.system_policy: fold, which puts the system text into the first user message"
        except Exception:  # then it is not, or not only, the system message
            pass
    return "change the roles or set another data.chat_template"


def fold_system(messages: list[Message]) -> list[Message]:
    """`messages` with a leading system text put into the user message that follows it, or unchanged without these."""
    if len(messages) < 2 or messages[0]["role"] not in ("system", "developer") or messages[1]["role"] != "user":
        return messages
    system, user = messages[0]["content"], messages[1]["content"]
    text = f"{system}\n\n{user}" if system.strip() else user
    return [{**messages[1], "content": text}, *messages[2:]]
