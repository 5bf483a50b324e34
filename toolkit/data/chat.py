"""From an example to token ids and labels, and to the prompt that generation starts from.

Text is rendered once and tokenized once, exactly as at inference; which tokens are learnt follows from their character
offsets. Tokenizing the parts alone would give other tokens at the seams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from toolkit.data.controls import control_tokens, special_tokens
from toolkit.data.examples import Chat, Completion, Example, Judged, Preference, Text, sides_of
from toolkit.data.pasted import mark_pasted, steering_tokens, swap_markers
from toolkit.data.renamed import renamed
from toolkit.data.render import Span
from toolkit.data.rows import RowError
from toolkit.data.skeleton import quick_spans
from toolkit.data.spans import assistant_spans
from toolkit.data.template import fold_system, render_or_explain, require_chat_template, template_profile
from toolkit.data.tokenize import IGNORED, tokenize_batch
from toolkit.errors import UserError

ControlTokens = Literal["text", "token"]
SystemPolicy = Literal["keep", "fold"]
# Where files and templates put what an assistant thought before it answered.
REASONING = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True)
class Encoded:
    """One example, not truncated. `labels` equals `input_ids` where learnt, else -100; they are not shifted.

    labels[0] is always -100: nothing predicts the first token. `turn_end_missing`: the template closes an assistant
    turn with no token, so the model cannot learn to stop there; the caller should say so once. `pasted`: the control
    tokens in the messages' own text, in order, repeated as often as they occur. `reasoning_lost`: the template leaves
    out the reasoning of a message that is learnt.
    """

    input_ids: list[int]
    labels: list[int]
    turn_end_missing: bool = False
    pasted: list[str] = field(default_factory=list)
    reasoning_lost: bool = False


@dataclass(frozen=True)
class _Draft:
    """A text with what is learnt of it, ready to be tokenized; `names`: by this backend, of other names."""

    text: str
    spans: list[Span]
    whole: bool
    turn_end_missing: bool = False
    pasted: list[str] = field(default_factory=list)
    names: Tokenizer | None = None
    reasoning_lost: bool = False


def encode(
    example: Example,
    tokenizer: PreTrainedTokenizerBase,
    *,
    where: str = "",
    control_tokens: ControlTokens = "text",
    system_policy: SystemPolicy = "keep",
) -> Encoded:
    """Token ids and labels of `example`; `where` (FILE:LINE) heads row errors.

    control_tokens: what control tokens in the text of a chat's messages become, plain text or the tokens they look
    like; in other examples they act. system_policy: "fold" puts a leading system text into the first user message.

    Raises `RowError` where the row cannot be masked or has nothing to learn, `UserError` where the tokenizer does not
    serve: not a fast one, no chat template, no end token.
    """
    [encoded] = encode_batch(
        [example], tokenizer, where=[where], control_tokens=control_tokens, system_policy=system_policy
    )
    if isinstance(encoded, RowError):
        raise encoded
    return encoded


def encode_batch(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    *,
    where: Sequence[str] | None = None,
    control_tokens: ControlTokens = "text",
    system_policy: SystemPolicy = "keep",
) -> list[Encoded | RowError]:
    """`encode` for many examples, faster than one by one; a row error stands in the place of its example."""
    if not tokenizer.is_fast:
        raise UserError(f"{type(tokenizer).__name__} is not a fast tokenizer; label masks need character offsets")
    places = where or [""] * len(examples)
    found: dict[int, Encoded | RowError] = {}
    groups: dict[tuple[int, bool], list[tuple[int, _Draft]]] = {}
    for i, (example, place) in enumerate(zip(examples, places, strict=True)):
        try:
            draft = _draft(example, tokenizer, place, control_tokens, system_policy)
        except RowError as error:
            found[i] = error
        else:
            groups.setdefault((id(draft.names), draft.whole), []).append((i, draft))
    for members in groups.values():
        for (i, _), encoded in zip(members, _tokenize([draft for _, draft in members], tokenizer), strict=True):
            learnt = encoded.labels.count(IGNORED) < len(encoded.labels)
            reason = ("no token to learn", "every label is masked", "remove the row")
            found[i] = encoded if learnt else RowError(places[i], *reason)
    return [found[i] for i in range(len(examples))]


def turn_end_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that end an assistant turn under the tokenizer's template, for `generation_config.eos_token_id`.

    Found by rendering a probe; empty if the template ends turns with no token.
    """
    require_chat_template(tokenizer)
    profile = template_profile(tokenizer)
    # A template may close with several tokens in a row; generation is over at the last one.
    ends = [*profile.turn_end[-1:], profile.call_end, *profile.openers.values()]
    return [tokenizer.added_tokens_encoder.get(end, tokenizer.eos_token_id) for end in dict.fromkeys(ends) if end]


def prompt_ids(
    example: Example,
    tokenizer: PreTrainedTokenizerBase,
    *,
    where: str = "",
    control_tokens: ControlTokens = "text",
    system_policy: SystemPolicy = "keep",
) -> tuple[list[int], str] | None:
    """The prompt to generate from, and the reference answer; None where there is no prompt.

    A chat is cut before its last assistant turn, and the generation prompt appended. The options are those of `encode`.
    """
    example = sides_of(example)[0]
    if isinstance(example, Text):
        return None
    if isinstance(example, Completion):
        ids = list(tokenizer(example.prompt)["input_ids"])
        if ids and ids[-1] == tokenizer.eos_token_id:  # some tokenizers close every text
            ids.pop()
        return (ids, example.completion) if ids else None
    require_chat_template(tokenizer)
    example = _folded(example, system_policy)
    last = max(i for i, message in enumerate(example.messages) if message["role"] == "assistant")
    if last == 0:
        return None
    asked, _, marker = _marked(replace(example, messages=example.messages[:last]), tokenizer, control_tokens)
    text = render_or_explain(tokenizer, asked.messages, asked.tools, where, prompt=True)
    draft = _with_names(_Draft(text, [], False), example, tokenizer, marker)
    return _tokenize([draft], tokenizer)[0].input_ids, example.messages[last]["content"]


def special_tokens_in_content(example: Example, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Control tokens that occur in the example's own text, where they act as control tokens: worth a warning.

    Added tokens that are ordinary parts of an answer, such as `<think>`, do not count, unless they end a turn.
    """
    if isinstance(example, Chat):
        texts = [message["content"] for message in example.messages]
    else:
        assert not isinstance(example, (Preference, Judged))
        texts = [example.text] if isinstance(example, Text) else [example.prompt, example.completion]
    special = set(special_tokens(tokenizer))
    pattern = control_tokens(tokenizer)
    if isinstance(example, Chat):
        profile = template_profile(tokenizer, example.tools)
        special |= set(profile.turn_end)
    found = [match.group() for text in texts for match in pattern.finditer(text)]
    return [token for token in dict.fromkeys(found) if token in special]


def _folded(chat: Chat, policy: SystemPolicy) -> Chat:
    messages = fold_system(chat.messages) if policy == "fold" else chat.messages
    return chat if messages is chat.messages else Chat(messages, chat.tools, chat.learnt and chat.learnt[1:])


def _marked(chat: Chat, tokenizer: PreTrainedTokenizerBase, policy: ControlTokens) -> tuple[Chat, list[str], str]:
    marked, pasted, marker = mark_pasted(chat, tokenizer)
    return (marked, pasted, marker) if policy == "text" else (chat, pasted, "")


def _draft(
    example: Example, tokenizer: PreTrainedTokenizerBase, where: str, control: ControlTokens, policy: SystemPolicy
) -> _Draft:
    if isinstance(example, Chat):
        require_chat_template(tokenizer)
        chat, pasted, marker = _marked(_folded(example, policy), tokenizer, control)
        turns = quick_spans(chat, tokenizer) or assistant_spans(chat, tokenizer, where)
        draft = _Draft(turns.text, turns.spans, False, turns.turn_end_missing, pasted)
        draft = replace(draft, reasoning_lost=_reasoning_lost(chat, turns.text))
        return _with_names(draft, chat, tokenizer, marker)
    if isinstance(example, Completion):
        text = example.prompt + example.completion
        return _Draft(text, [(0 if example.learn_prompt else len(example.prompt), len(text))], True)
    assert isinstance(example, Text), "a preference pair is encoded answer by answer"
    return _Draft(example.text, [(0, len(example.text))], True)


def _reasoning_lost(chat: Chat, text: str) -> bool:
    learnt = chat.learnt or (True,) * len(chat.messages)
    fields = [
        message.get(key) for message, flag in zip(chat.messages, learnt, strict=True) if flag for key in REASONING
    ]
    return any(isinstance(value, str) and value.strip() not in text for value in fields)


def _with_names(draft: _Draft, chat: Chat, tokenizer: PreTrainedTokenizerBase, marker: str) -> _Draft:
    if not marker:
        return draft
    steering = steering_tokens(tokenizer, chat.tools)
    text, spans = swap_markers(draft.text, draft.spans, tokenizer, steering, marker)
    return replace(draft, text=text, spans=spans, names=renamed(tokenizer, steering, marker))


def _tokenize(drafts: list[_Draft], tokenizer: PreTrainedTokenizerBase) -> list[Encoded]:
    """All of one kind: whole texts or renderings, by the tokenizer itself or one of other names."""
    names, whole = drafts[0].names, drafts[0].whole
    backend = names or tokenizer.backend_tokenizer
    results = tokenize_batch([d.text for d in drafts], [d.spans for d in drafts], backend, add_special_tokens=whole)
    encoded = []
    for draft, (ids, labels) in zip(drafts, results, strict=True):
        if whole:
            ids, labels = _close(ids, labels, tokenizer)
        encoded.append(Encoded(ids, labels, draft.turn_end_missing, draft.pasted, draft.reasoning_lost))
    return encoded


def _close(ids: list[int], labels: list[int], tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """With the end token, which is learnt: it is how the model stops."""
    end = tokenizer.eos_token_id
    if end is None:
        raise UserError("tokenizer has no eos token, so plain text cannot be ended; set one on the tokenizer")
    if ids and ids[-1] == end:
        return ids, [*labels[:-1], end if len(ids) > 1 else IGNORED]
    return [*ids, end], [*labels, end if ids else IGNORED]
