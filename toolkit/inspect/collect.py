"""The one place where inspection meets the data layer: prepared data in, plain parts out.

Everything else in this package knows only what is defined here. What the data layer does not tell (where a row came
from, its example, the account of its source) falls back to "row N" and None, and the views leave it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from toolkit.config import DataConfig
from toolkit.data.examples import Example
from toolkit.data.prepare import PreparedData
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
    sources: list[Any] = getattr(data, "sources", None) or []
    eval_sources: list[Any] = getattr(data, "eval_sources", None) or []
    train = _part("train", data.train, sources)
    held_out = None if data.eval is None else _part("eval", data.eval, eval_sources)
    whole = [Source("all training rows", 0, len(data.train), None)]
    return Collected(
        train=train,
        eval=held_out,
        sources=[_source(source) for source in sources] or whole,
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


def _part(name: str, rows: TokenRows, sources: list[Any]) -> Part:
    origin = getattr(rows, "origin", None)

    def place(row: int) -> str:
        return str(origin(row)) if origin is not None else f"row {row + 1}"

    def example(row: int) -> Example | None:
        for source in sources:
            if row in source.rows:
                return source.example(row)
        return None

    return Part(name, rows, place, example)


def _source(source: Any) -> Source:
    """From the data layer's source: `name`, `rows` (a range of the training rows) and `account`."""
    return Source(str(source.name), source.rows.start, source.rows.stop, _account(source.account))


def _account(account: Any) -> SourceAccount | None:
    if account is None:
        return None
    split, dropped = int(getattr(account, "split", 0)), {str(k): int(v) for k, v in account.dropped.most_common()}
    whole = account.read - account.truncated - split - sum(dropped.values())
    return SourceAccount(account.read, whole, account.truncated, split, dropped, account.answers_cut)
