"""Which characters of a rendered conversation the assistant wrote, for any chat template.

A template is a program: it may trim, merge, reorder or drop what it is given, so looking for markers in its output is
guessing, and a user who pastes a marker would fool it. Two sources are exact. A template with `{% generation %}` says
it itself. For any other, message i is replaced by a sentinel and the conversation rendered again: what the two
renderings do not share is what message i contributes. Where that fails, the row is an error, never a wrong mask.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from toolkit.data.controls import snap
from toolkit.data.examples import Chat, Message
from toolkit.data.probe import Profile
from toolkit.data.render import Span, common_prefix
from toolkit.data.rows import RowError
from toolkit.data.template import render, render_marked, render_or_explain, template_profile


@dataclass(frozen=True)
class Turns:
    """A rendered conversation: `spans` are the half-open character ranges of `text` to be learnt, in order.

    `turn_end_missing`: a span ends with its text, because the template closes that turn with no token.
    """

    text: str
    spans: list[Span]
    turn_end_missing: bool


@dataclass(frozen=True)
class _Region:
    """Where one message is rendered.

    `inner`: only parts of it were varied, so text of its own may lie around it. `same_before`, `same_after`: with
    another message in its place, the template writes the same up to its text, and from its text on.
    """

    start: int
    end: int
    inner: bool
    same_before: bool
    same_after: bool


def assistant_spans(chat: Chat, tokenizer: PreTrainedTokenizerBase, where: str = "") -> Turns:
    """Render `chat` and find its supervised assistant turns, each with what closes it.

    A span starts where the generation prompt ends: what the model itself must write, such as `<think>`, belongs to it.
    Raises `RowError` where the template raises, rewrites the conversation so that turns cannot be told apart, or
    leaves out a turn or its tool calls.
    """
    text = render_or_explain(tokenizer, chat.messages, chat.tools, where)
    if chat.learnt is None:
        return Turns(text, [(0, len(text))], False)
    profile = template_profile(tokenizer, chat.tools)
    learnt = [i for i, flag in enumerate(chat.learnt) if flag]
    _check_tool_calls(chat, learnt, text, tokenizer, where)
    marks = _marked_spans(chat, learnt, text, tokenizer, profile) if profile.marked else None
    if marks is not None:
        return marks
    regions = _regions(chat, text, tokenizer, where)
    spans, missing = [], False
    for index in learnt:
        region = regions[index]
        if region is None:
            raise RowError(where, "the chat template does not render an assistant message", f"message {index}")
        start = _start(chat, index, regions, text, tokenizer, profile, where)
        if not text[start : region.end].strip():
            raise RowError(where, "the chat template renders nothing of an assistant message", f"message {index}")
        end, closed = _end(chat, index, regions, text, tokenizer, profile, where)
        if not closed:
            text, end, closed = _stop_at_opener(chat, index, end, text, profile)
        spans.append((start, end))
        missing |= not closed
    return Turns(text, spans, missing)


def _marked_spans(
    chat: Chat, learnt: list[int], text: str, tokenizer: PreTrainedTokenizerBase, profile: Profile
) -> Turns | None:
    """The template's own marks, or None where they do not say which message each belongs to, but that matters."""
    marked, spans = render_marked(tokenizer, chat.messages, chat.tools)
    assistants = [i for i, m in enumerate(chat.messages) if m["role"] == "assistant"]
    matched = len(spans) == len(assistants)
    if marked != text or not (matched or len(learnt) == len(assistants)):
        return None
    found, missing = [], False
    for number, (start, end) in enumerate(spans):
        if end <= start or (matched and assistants[number] not in learnt):
            continue
        content = chat.messages[assistants[number]]["content"].rstrip() if matched else ""
        inside = text[start:end].rstrip()
        # An answer may itself end in the text of a control token; that one does not close the turn.
        holds_end = any(
            inside.endswith(e) and (not content.endswith(e) or inside.endswith(content + e)) for e in profile.enders
        )
        end, closed = (start + len(inside), True) if holds_end else _close(end, text, profile)
        found.append((start, end))
        missing |= not closed
    return Turns(text, found, missing)


def _check_tool_calls(chat: Chat, learnt: list[int], text: str, tokenizer: PreTrainedTokenizerBase, where: str) -> None:
    for index in learnt:
        message = chat.messages[index]
        if not message.get("tool_calls"):
            continue
        bare = {key: value for key, value in message.items() if key != "tool_calls"}
        try:
            same = render(tokenizer, _replaced(chat.messages, index, bare), chat.tools) == text
        except Exception:  # it looks at the calls, then
            same = False
        if same:
            advice = "set a data.chat_template that does"
            raise RowError(where, "the chat template does not render tool_calls", f"message {index}", advice)


def _regions(chat: Chat, text: str, tokenizer: PreTrainedTokenizerBase, where: str) -> list[_Region | None]:
    """Where each message is rendered (None: nowhere), checked to be apart from each other."""
    sentinel = _sentinel(text, chat)
    candidates = [_candidates(chat, i, text, sentinel, tokenizer) for i in range(len(chat.messages))]
    others = [c[0] for c, m in zip(candidates, chat.messages, strict=True) if m["role"] != "assistant" and c]
    regions: list[_Region | None] = []
    for found, message in zip(candidates, chat.messages, strict=True):
        if message["role"] == "assistant" and found:
            found = [r for r in found if r.same_after or r.inner]
            # Without its call, a tool's result may vanish as well; then only varying the arguments tells them apart.
            found = [r for r in found if all(r.end <= o.start or o.end <= r.start for o in others)]
            if not found:  # what follows the answer depends on it: its end cannot be told from what follows
                raise _unmaskable(where)
        regions.append(found[0] if found else None)
    reached = 0  # so that a message rendered as nothing overlaps what it lies within, but not what it touches
    for region in sorted((r for r in regions if r is not None), key=lambda r: (r.start, r.end)):
        if region.start < reached:
            raise _unmaskable(where)
        reached = max(reached, region.end)
    return regions


def _unmaskable(where: str) -> RowError:
    advice = "use a template with {% generation %} marks"
    return RowError(where, "the chat template rewrites the conversation, so it cannot be masked", advice=advice)


def _candidates(chat: Chat, index: int, text: str, sentinel: str, tokenizer: PreTrainedTokenizerBase) -> list[_Region]:
    """The regions that replacing message `index` gives, most trusted first."""
    message = chat.messages[index]
    bare = {"content": sentinel} if message["role"] == "assistant" else {**message, "content": sentinel}
    variants: list[tuple[Message, bool]] = [({"role": message["role"], **bare}, False)]
    if message.get("tool_calls"):  # a template may refuse a tool message that answers no call: keep the calls
        variants.append((_with_sentinels(message, sentinel), True))
    regions = []
    for variant, inner in variants:
        try:
            other = render(tokenizer, _replaced(chat.messages, index, variant), chat.tools)
        except Exception:  # this variant is not acceptable to the template; the next may be
            continue
        first, last = other.find(sentinel), other.rfind(sentinel) + len(sentinel)
        if first < 0:
            continue
        start, tail = common_prefix(text, other), _common_suffix(text, other)
        end = max(start, len(text) - tail)
        regions.append(_Region(start, end, inner, start == first, tail == len(other) - last))
    return regions


def _with_sentinels(message: Message, sentinel: str) -> Message:
    calls = []
    for call in message["tool_calls"]:
        function = {**call.get("function", call), "arguments": {sentinel: sentinel}}
        calls.append({**call, "function": function} if "function" in call else function)
    texts = ("content", "reasoning_content", "thinking", "reasoning")
    return {**message, **{key: sentinel for key in texts if message.get(key)}, "tool_calls": calls}


def _sentinel(text: str, chat: Chat) -> str:
    """A text whose first and last character occur nowhere, so that no answer can share an end with it."""
    used = set(text).union(*(message["content"] for message in chat.messages))
    free = (chr(code) for code in range(0xE100, 0xF8FF) if chr(code) not in used)  # private use
    return f"{next(free)}s{next(free)}"


def _start(
    chat: Chat,
    index: int,
    regions: list[_Region | None],
    text: str,
    tokenizer: PreTrainedTokenizerBase,
    profile: Profile,
    where: str,
) -> int:
    """Where the model takes over: after the generation prompt, or where the message's own text begins."""
    region = regions[index]
    assert region is not None
    given = profile.generation_prompt
    before = max((r.end for r in regions if r is not None and r is not region and r.end <= region.start), default=0)
    prompt = ""
    if index > 0:
        try:
            prompt = render(tokenizer, chat.messages[:index], chat.tools, prompt=True)
        except Exception:  # part of a conversation may be refused where the whole is not
            prompt = ""
    # What a run would hand to the model is the best evidence. Nothing pasted into a message can imitate it.
    supplied = bool(prompt) and text.startswith(prompt) and before <= len(prompt) <= region.end
    if supplied:
        # A header that no prompt supplies is not taught, but the space before an answer is.
        headed = not given and text[len(prompt) : region.start].strip()
        return region.start if headed else len(prompt)
    # The prompt may end in more than this turn has, such as an opening <think>.
    if given and prompt.endswith(given) and text.startswith(prompt[: -len(given)]):
        shared = snap(common_prefix(text, prompt), text, profile.controls)
        return max(before, min(shared, region.start))
    # Earlier turns are rewritten. Between two messages only the template speaks, so its prompt can be looked for.
    position = text.rfind(given, before, region.start) if given else -1
    if position >= 0:
        return position + len(given)
    if not region.same_before:  # the turn may begin anywhere before its text
        raise _unmaskable(where)
    return region.start


def _end(
    chat: Chat,
    index: int,
    regions: list[_Region | None],
    text: str,
    tokenizer: PreTrainedTokenizerBase,
    profile: Profile,
    where: str,
) -> tuple[int, bool]:
    """The end of the turn, with the token that closes it, and whether there is one."""
    region = regions[index]
    assert region is not None
    after = min((r.start for r in regions if r is not None and r.start >= region.end and r is not region), default=None)
    if not region.inner:
        return _close(region.end, text[:after], profile)  # the next message may begin with the text of an end token
    # Text of this message may follow the varied part (a closing bracket): the conversation up to here shows its end.
    upto = render_or_explain(tokenizer, chat.messages[: index + 1], chat.tools, where).rstrip()
    if not text.startswith(upto) or len(upto) < region.end or (after is not None and len(upto) > after):
        advice = "use a template with {% generation %} marks"
        raise RowError(where, "the chat template rewrites tool calls, so they cannot be masked", advice=advice)
    last = next((match.group() for match in profile.controls.finditer(upto) if match.end() == len(upto)), None)
    return len(upto), last in profile.enders


def _stop_at_opener(chat: Chat, index: int, end: int, text: str, profile: Profile) -> tuple[str, int, bool]:
    """Text, end and closed for a turn without an end of its own: the model stops by opening the next turn.

    That token is learnt where the template writes it. After the last turn it does not, so it is added: without it the
    model would never learn to stop there.
    """
    last = index + 1 == len(chat.messages)
    after = "tool" if chat.messages[index].get("tool_calls") else "user"
    opener = profile.openers.get(after if last else chat.messages[index + 1]["role"])
    if opener is None:
        return text, end, False
    position = end + len(text[end:]) - len(text[end:].lstrip())
    if text.startswith(opener, position):
        return text, position + len(opener), True
    return (text + opener, len(text + opener), True) if last and position == len(text) else (text, end, False)


def _close(end: int, text: str, profile: Profile) -> tuple[int, bool]:
    """`end` moved over optional white space and the control tokens that close a turn, and whether there was one."""
    position = end + len(text[end:]) - len(text[end:].lstrip())
    closed = False
    while (match := profile.controls.match(text, position)) and match.group() in profile.enders:
        position, closed = match.end(), True
    return (position, True) if closed else (end, False)


def _replaced(messages: list[Message], index: int, message: Message) -> list[Message]:
    return [*messages[:index], message, *messages[index + 1 :]]


def _common_suffix(a: str, b: str) -> int:
    return common_prefix(a[::-1], b[::-1])
