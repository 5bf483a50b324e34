"""From texts with the ranges that are learnt to token ids and labels."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from tokenizers import Tokenizer

from toolkit.data.render import Span

IGNORED = -100


def tokenize_batch(
    texts: list[str], spans: list[list[Span]], backend: Tokenizer, add_special_tokens: bool
) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of each text: a token is learnt if it has a character of a span (sorted, half-open).

    `backend` is what a fast tokenizer calls in the end; its wrapper costs a quarter of the time and adds nothing here.
    """
    if backend.truncation is not None:
        backend.no_truncation()
    if backend.padding is not None:
        backend.no_padding()
    if len(texts) == 1:  # spares the hand-over to the pool of threads
        encodings = [backend.encode(texts[0], add_special_tokens=add_special_tokens)]
    else:
        encodings = backend.encode_batch(texts, add_special_tokens=add_special_tokens)
    return [(e.ids, labels_of(e.ids, e.offsets, s)) for e, s in zip(encodings, spans, strict=True)]


def labels_of(ids: list[int], offsets: list[tuple[int, int]], spans: list[Span]) -> list[int]:
    """The label of each token: its id where learnt, else -100; the first is never learnt, nothing predicts it."""
    starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
    previous, empty = 0, []
    for i, (start, end) in enumerate(offsets):
        if start == end:  # white space alone: some tokenizers trim it off the offsets
            starts[i] = min(previous, end)
            if starts[i] == end:
                empty.append(i)
        if end > previous:
            previous = end
    labels = [IGNORED] * len(ids)
    if starts != sorted(starts) or ends != sorted(ends):  # added at both ends, such as a beginning of text
        for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if any(start < end and start < last and end > first for first, last in spans):
                labels[i] = ids[i]
    else:
        for first, last in spans:
            low, high = bisect_right(ends, first), bisect_left(starts, last)
            labels[low:high] = ids[low:high]
    for i in [0, *empty] if labels else []:
        labels[i] = IGNORED
    return labels
