"""From an example to token ids and labels, and to the prompt that generation starts from.

Text is rendered once and tokenized once, exactly as at inference; which tokens are learnt follows from their character
offsets. Tokenizing the parts alone would give other tokens at the seams.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from toolkit.data.controls import control_tokens
from toolkit.data.examples import Chat, Completion, Example, Preference, Text
from toolkit.data.render import Span
from toolkit.data.rows import RowError
from toolkit.data.spans import assistant_spans
from toolkit.data.template import render_or_explain, require_chat_template, template_profile
from toolkit.errors import UserError

IGNORED = -100


@dataclass(frozen=True)
class Encoded:
    """One example, not truncated. `labels` equals `input_ids` where learnt, else -100; they are not shifted.

    labels[0] is always -100: nothing predicts the first token. `turn_end_missing`: the template closes an assistant
    turn with no token, so the model cannot learn to stop there; the caller should say so once.
    """

    input_ids: list[int]
    labels: list[int]
    turn_end_missing: bool = False


def encode(example: Example, tokenizer: PreTrainedTokenizerBase, *, where: str = "") -> Encoded:
    """Token ids and labels of `example`; `where` (FILE:LINE) heads row errors.

    Raises `RowError` where the row cannot be masked or has nothing to learn, `UserError` where the tokenizer does not
    serve: not a fast one, no chat template, no end token.
    """
    if not tokenizer.is_fast:
        raise UserError(f"{type(tokenizer).__name__} is not a fast tokenizer; label masks need character offsets")
    if isinstance(example, Chat):
        require_chat_template(tokenizer)
        turns = assistant_spans(example, tokenizer, where)
        ids, labels = _tokenize(turns.text, turns.spans, tokenizer, add_special_tokens=False)
        encoded = Encoded(ids, labels, turns.turn_end_missing)
    elif isinstance(example, Completion):
        text = example.prompt + example.completion
        start = 0 if example.learn_prompt else len(example.prompt)
        encoded = _close(*_tokenize(text, [(start, len(text))], tokenizer), tokenizer)
    else:
        assert isinstance(example, Text), "a preference pair is encoded answer by answer"
        encoded = _close(*_tokenize(example.text, [(0, len(example.text))], tokenizer), tokenizer)
    if all(label == IGNORED for label in encoded.labels):
        raise RowError(where, "no token to learn", "every label is masked", "remove the row")
    return encoded


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
    example: Example, tokenizer: PreTrainedTokenizerBase, *, where: str = ""
) -> tuple[list[int], str] | None:
    """The prompt to generate from, and the reference answer; None where there is no prompt.

    A chat is cut before its last assistant turn, and the generation prompt appended.
    """
    if isinstance(example, Text):
        return None
    assert not isinstance(example, Preference)
    if isinstance(example, Completion):
        ids = list(tokenizer(example.prompt)["input_ids"])
        if ids and ids[-1] == tokenizer.eos_token_id:  # some tokenizers close every text
            ids.pop()
        return (ids, example.completion) if ids else None
    require_chat_template(tokenizer)
    last = max(i for i, message in enumerate(example.messages) if message["role"] == "assistant")
    if last == 0:
        return None
    text = render_or_explain(tokenizer, example.messages[:last], example.tools, where, prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"]), example.messages[last]["content"]


def special_tokens_in_content(example: Example, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Control tokens that occur in the example's own text, where they act as control tokens: worth a warning.

    Added tokens that are ordinary parts of an answer, such as `<think>`, do not count, unless they end a turn.
    """
    if isinstance(example, Chat):
        texts = [message["content"] for message in example.messages]
    else:
        assert not isinstance(example, Preference)
        texts = [example.text] if isinstance(example, Text) else [example.prompt, example.completion]
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    special |= set(tokenizer.all_special_tokens)
    pattern = control_tokens(tokenizer)
    if isinstance(example, Chat):
        profile = template_profile(tokenizer, example.tools)
        special |= set(profile.turn_end)
    found = [match.group() for text in texts for match in pattern.finditer(text)]
    return [token for token in dict.fromkeys(found) if token in special]


def _tokenize(
    text: str, spans: list[Span], tokenizer: PreTrainedTokenizerBase, add_special_tokens: bool = True
) -> tuple[list[int], list[int]]:
    """Ids of `text`, and labels: a token is learnt if it has a character of a span (sorted, half-open)."""
    encoding = tokenizer(text, add_special_tokens=add_special_tokens, return_offsets_mapping=True)
    ids = list(encoding["input_ids"])
    labels, previous_end, current = [], 0, 0
    for token, (start, end) in zip(ids, encoding["offset_mapping"], strict=True):
        if start == end:  # white space alone: some tokenizers trim it off the offsets
            start = min(previous_end, end)
        previous_end = max(previous_end, end)
        while current < len(spans) and spans[current][1] <= start:
            current += 1
        inside = current < len(spans) and start < end and end > spans[current][0]
        labels.append(token if inside else IGNORED)
    if labels:
        labels[0] = IGNORED
    return ids, labels


def _close(ids: list[int], labels: list[int], tokenizer: PreTrainedTokenizerBase) -> Encoded:
    """With the end token, which is learnt: it is how the model stops."""
    end = tokenizer.eos_token_id
    if end is None:
        raise UserError("tokenizer has no eos token, so plain text cannot be ended; set one on the tokenizer")
    if ids and ids[-1] == end:
        return Encoded(ids, [*labels[:-1], end if len(ids) > 1 else IGNORED])
    return Encoded([*ids, end], [*labels, end if ids else IGNORED])
