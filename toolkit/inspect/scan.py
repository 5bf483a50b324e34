"""One pass over all rows of a part, in batches, that keeps a few numbers a row and no text."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from toolkit.data.tokens import TokenRows

_BATCH = 512
_FIRST_TOKENS = 12
_LONGEST_WORD = 24


@dataclass(frozen=True)
class Scan:
    """What one pass over `rows` rows finds.

    lengths, supervised: [rows] tokens and supervised tokens. texts: [rows, 2] uint64, a 128-bit digest of each row's
    normalised text. prompts: the same of its unsupervised text; has_prompt: [rows] False for plain text, which is
    supervised from its second token on, so that what is not supervised is no prompt. first_words: of the answers.
    """

    lengths: np.ndarray
    supervised: np.ndarray
    texts: np.ndarray
    prompts: np.ndarray
    has_prompt: np.ndarray
    first_words: Counter[str]


def scan(rows: TokenRows, decode: Callable[[list[list[int]]], list[str]], special: frozenset[int]) -> Scan:
    """Count and digest all rows; memory is about 50 bytes a row, whatever the texts weigh."""
    count = len(rows)
    supervised = np.zeros(count, np.int64)
    texts, prompts = np.zeros((count, 2), np.uint64), np.zeros((count, 2), np.uint64)
    has_prompt = np.zeros(count, bool)
    words: Counter[str] = Counter()
    for start in range(0, count, _BATCH):
        stop = min(start + _BATCH, count)
        whole, masked, answers = [], [], []
        for row in range(start, stop):
            ids, mask = rows.ids(row), rows.labels(row) != -100
            supervised[row] = mask.sum()
            has_prompt[row] = not mask[1:].all()
            whole.append(ids.tolist())
            masked.append(ids[~mask].tolist())
            answers.append(_opening(ids, mask, special))
        texts[start:stop] = [digest(text) for text in decode(whole)]
        prompts[start:stop] = [digest(text) for text in decode(masked)]
        words.update(word for text in decode(answers) for word in _first_word(text))
    return Scan(np.asarray(rows.lengths), supervised, texts, prompts, has_prompt, words)


def normalise(text: str) -> str:
    """What makes two texts count as the same: Unicode form (NFKC), case and white space do not matter."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def digest(text: str) -> tuple[int, int]:
    """128 bits of the normalised text, as two 64-bit numbers; 10^6 different texts meet with a chance of about 10^-27."""
    value = blake2b(normalise(text).encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return int.from_bytes(value[:8], "little"), int.from_bytes(value[8:], "little")


def groups(digests: np.ndarray) -> np.ndarray:
    """[rows] a number for each distinct digest; equal rows of `digests` [rows, 2] get the same."""
    if len(digests) == 0:
        return np.empty(0, np.int64)
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    ordered = digests[order]
    new = np.r_[False, (ordered[1:] != ordered[:-1]).any(axis=1)]
    numbers = np.empty(len(digests), np.int64)
    numbers[order] = np.cumsum(new)
    return numbers


def runs(mask: np.ndarray) -> Iterator[tuple[int, int]]:
    """Half-open (start, end) of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.r_[False, mask, False].astype(np.int8)))
    yield from map(tuple, edges.reshape(-1, 2).tolist())


def _opening(ids: np.ndarray, mask: np.ndarray, special: frozenset[int]) -> list[int]:
    """The first tokens of the first answer, control tokens left out."""
    start = int(mask.argmax()) if mask.any() else len(ids)
    end = start + int(np.r_[mask[start : start + _FIRST_TOKENS], False].argmin())
    return [i for i in ids[start:end].tolist() if i not in special]


def _first_word(text: str) -> list[str]:
    found = re.search(r"\S+", text)
    word = found.group().strip("\"'.,:;!?()[]*#`\u201c\u201d\u2018\u2019") if found else ""
    return [word[:_LONGEST_WORD]] if word else []
