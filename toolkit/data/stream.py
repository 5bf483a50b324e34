"""Rows that are tokenized while training goes on, for data that does not fit a disk or never ends.

The order of the rows is a function of the seed alone: global batch n is rows n x B to (n + 1) x B of the stream, on any
number of ranks. Every rank reads the stream and tokenizes only its own share of each batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from transformers import PreTrainedTokenizerBase

from toolkit.config import DataConfig
from toolkit.data.account import Account
from toolkit.data.permutation import permute
from toolkit.data.rows import Row, RowError
from toolkit.data.settings import Note, Settings, decide_settings
from toolkit.data.shapes import SUPERVISED
from toolkit.data.sources import find_sources, read_blocks
from toolkit.data.sources.source import ParsedBlock, Source
from toolkit.data.store import store_of
from toolkit.data.tokenizing import Tokenizing
from toolkit.data.tokens import TokenRows
from toolkit.errors import UserError

# Before this many rows, a few bad ones say nothing about the rest.
_ROWS_BEFORE_JUDGING = 1000

_Numbered = tuple[int, Row | RowError]  # number of the source, row


@dataclass(frozen=True)
class RowStream:
    """An endless sequence of rows: passes over the sources, shuffled within windows.

    `account` counts the rows that this process tokenized, `read_by_all` those of all processes, once training has ended.
    """

    sources: list[Source]
    settings: list[Settings]
    config: DataConfig
    tokenizer: PreTrainedTokenizerBase
    seed: int
    account: Account = field(default_factory=Account)
    read_by_all: Account = field(default_factory=Account)

    def batches(self, size: int, start: int = 0) -> Iterator[tuple[int, list[_Numbered]]]:
        """(pass, rows) of global batch `start` and all that follow; a batch may lie across two passes."""
        rows = islice(self._endless(), start * size, None)
        while True:
            batch = list(islice(rows, size))
            yield batch[-1][0], [row for _, row in batch]

    def tokenize(self, rows: list[_Numbered]) -> TokenRows:
        """These rows as tokens; those that cannot be used are errors, or counted and left out. Raises `UserError`."""
        stores = []
        for number, (source, settings) in enumerate(zip(self.sources, self.settings, strict=True)):
            mine = [row for owner, row in rows if owner == number]
            if not mine:
                continue
            paths = tuple(map(str, source.files)) or (str(source.dataset),)
            block = Tokenizing(self.tokenizer, settings, paths)(ParsedBlock(0, mine))
            if block.error is not None:
                raise UserError(str(block.error))
            self.account.add(block.account)
            stores.append(store_of(block, paths))
        self._judge()
        return TokenRows.of(*stores)

    def sample(self, count: int = 64) -> TokenRows:
        """The first rows that can be used, for checks before training; they are not counted. Raises `UserError`."""
        trial = RowStream(self.sources, self.settings, self.config, self.tokenizer, self.seed)
        for _, rows in islice(trial.batches(count), 16):
            tokens = trial.tokenize(rows)
            if len(tokens):
                return tokens
        raise UserError(f"data.train: 0 usable rows among the first {trial.account.read:,}: {trial.account}")

    def _judge(self) -> None:
        lost = self.account.bad + self.account.unlearnable
        if self.account.read >= _ROWS_BEFORE_JUDGING and lost > self.config.max_bad_fraction * self.account.read:
            raise UserError(
                f"data.train: {self.account}: a larger share than data.max_bad_fraction "
                f"({self.config.max_bad_fraction:g}); the first: {' | '.join(self.account.examples[:1])}"
            )

    def _endless(self) -> Iterator[tuple[int, _Numbered]]:
        turn = 0
        while True:
            found = False
            for row in self._shuffled(turn):
                found = True
                yield turn, row
            if not found:
                raise UserError("data.train: 0 usable rows: there is no row in the stream")
            turn += 1

    def _shuffled(self, turn: int) -> Iterator[_Numbered]:
        """One pass, shuffled within windows: as random as memory allows, and the same however many ranks read."""
        rows = self._interleaved() if len(self.sources) > 1 else self._rows(0)
        if not self.config.shuffle:
            yield from rows
            return
        number = 0
        while window := list(islice(rows, self.config.shuffle_window)):
            order = permute(np.arange(len(window)), len(window), self.seed, (turn << 32) + number)
            yield from (window[place] for place in order)
            number += 1

    def _rows(self, number: int) -> Iterator[_Numbered]:
        source = self.sources[number]
        rows = (row for block in read_blocks(source, streaming=True) for row in block.rows())
        return ((number, row) for row in islice(rows, source.spec.max_rows))

    def _interleaved(self) -> Iterator[_Numbered]:
        """Sources in turn by their weights; a pass is over when each has been read to its end, the others begin again."""
        weights = [source.spec.weight or 1.0 for source in self.sources]
        readers = [self._rows(number) for number in range(len(self.sources))]
        credit, ended = [0.0] * len(readers), set()
        while True:
            credit = [have + weight for have, weight in zip(credit, weights, strict=True)]
            number = max(range(len(credit)), key=lambda i: credit[i])
            credit[number] -= sum(weights)
            row = next(readers[number], None)
            if row is None:
                ended.add(number)
                if len(ended) == len(readers):
                    return
                readers[number] = self._rows(number)
                row = next(readers[number], None)
                if row is None:
                    raise UserError(f"data.train: {self.sources[number].name}: there is no row in it")
            yield row


def open_stream(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    seed: int,
    note: Note,
    accepted: Collection[str] = SUPERVISED,
) -> RowStream:
    """The stream of `data.train`. Raises `UserError` for options that need to know all rows beforehand."""
    if config.eval_fraction > 0:
        raise UserError("data.eval_fraction needs all rows at hand; with data.streaming, set data.eval")
    sources = find_sources(config, "train")
    repeated = [source.name for source in sources if source.spec.repeat is not None]
    if repeated:
        raise UserError(f"data.train: repeat of {repeated[0]} needs all rows at hand; with data.streaming, use weight")
    settings = [decide_settings(s, config, tokenizer, f"train {s.name}", note, accepted) for s in sources]
    order = f"shuffled within {config.shuffle_window:,} rows" if config.shuffle else "in the order of the files"
    note(f"train: streaming, {order}; every rank reads all rows and tokenizes its own")
    return RowStream(sources, settings, config, tokenizer, seed)
