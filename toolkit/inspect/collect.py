"""The one place where inspection meets the data layer: prepared data in, plain parts out.

Everything else in this package knows only what is defined here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from toolkit.config import DataConfig
from toolkit.data.account import Account
from toolkit.data.examples import Example
from toolkit.data.prepared import PreparedData, PreparedSource, examples_of
from toolkit.data.tokens import TokenRows


@dataclass(frozen=True)
class SourceAccount:
    """What became of the rows of one source: read = whole + truncated + split + all dropped."""

    read: int
    whole: int
    truncated: int
    split: int
    dropped: dict[str, int]
    answers_cut: int


@dataclass(frozen=True)
class Source:
    """Rows `first` to `last` - 1 of the training rows came from this source."""

    name: str
    first: int
    last: int
    account: SourceAccount | None


@dataclass(frozen=True)
class Part:
    """Training or evaluation rows: `place` says where a row came from (FILE:LINE), `example` what it was made of."""

    name: str
    rows: TokenRows
    place: Callable[[int], str]
    example: Callable[[int], Example | None]


@dataclass(frozen=True)
class Collected:
    """All that is inspected. `special` are the ids of control tokens; `decode` turns many rows of ids into texts."""

    train: Part
    eval: Part | None
    sources: list[Source]
    special: frozenset[int]
    decode: Callable[[list[list[int]]], list[str]]
    max_length: int


def collect(config: DataConfig, tokenizer: PreTrainedTokenizerBase, data: PreparedData) -> Collected:
    """The parts of prepared data that the views are made of."""
    starts = data.train.starts.tolist()
    sources = [
        Source(part.source.name, starts[i], starts[i + 1], _account(part.account))
        for i, part in enumerate(data.sources)
    ]
    return Collected(
        train=_part("train", data.train, data.sources),
        eval=None if data.eval is None else _part("eval", data.eval, data.eval_sources),
        sources=sources or [Source("a sample of the stream", 0, len(data.train), None)],
        special=special_ids(tokenizer),
        decode=decoder(tokenizer),
        max_length=config.max_length,
    )


def decoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[list[int]]], list[str]]:
    """Texts of many rows of ids as they stand: control tokens kept, white space not tidied."""

    def decode(rows: list[list[int]]) -> list[str]:
        return (
            tokenizer.batch_decode(rows, skip_special_tokens=False, clean_up_tokenization_spaces=False) if rows else []
        )

    return decode


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids of tokens that were added to the vocabulary as a whole, such as <|im_end|>; not those of white space alone."""
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if str(token).strip()}
    return frozenset(added | set(tokenizer.all_special_ids))


def _part(name: str, rows: TokenRows, sources: list[PreparedSource]) -> Part:
    def example(row: int) -> Example | None:
        return examples_of(rows, sources, [row]).get(row)

    return Part(name, rows, rows.origin, example)


def _account(account: Account) -> SourceAccount:
    dropped = dict(account.dropped.most_common())
    return SourceAccount(account.read, account.whole, account.truncated, account.split, dropped, account.answers_cut)
