"""From a block of rows to a block of tokens: the work that is spread over processes. Nothing here knows of files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from transformers import PreTrainedTokenizerBase

from toolkit.data.account import Account
from toolkit.data.chat import Encoded, encode_batch, special_tokens_in_content
from toolkit.data.examples import Chat, Example, Judged, sides_of
from toolkit.data.fit import Fitted, Piece, split, truncate
from toolkit.data.pairs import fit_pair, join, sides
from toolkit.data.rows import Row, RowError
from toolkit.data.settings import Settings
from toolkit.data.shapes import SHAPES, to_example
from toolkit.data.sources.source import Block

_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class TokenBlock:
    """Rows end to end. ids: [tokens] int32; supervised: [tokens] bool; the others: [rows].

    branches: [rows, 2] where the two answers of a pair begin in a row, zeros in others.
    values: [rows] fp32 what a row is judged to be, NaN without a judgement.
    files: index of each row's file; lines: its line. error: the row that stopped the work, if one did.
    """

    ids: np.ndarray
    supervised: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    branches: np.ndarray
    values: np.ndarray
    files: np.ndarray
    lines: np.ndarray
    account: Account
    error: RowError | None = None


@dataclass(frozen=True)
class Tokenizing:
    """The function that workers run, with what it needs."""

    tokenizer: PreTrainedTokenizerBase
    settings: Settings
    files: tuple[str, ...]
    controls: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "controls", np.array(sorted(self.tokenizer.added_tokens_decoder), dtype=np.int32))

    def __call__(self, block: Block) -> TokenBlock:
        """Tokenize, fit and count the rows of `block`; stops at a bad row unless those are skipped."""
        account, rows, error = Account(), [], None
        index = {file: number for number, file in enumerate(self.files)}
        try:
            for row, result in self._encoded(block):
                account.read += 1
                for piece in self._pieces(row, result, account):
                    assert isinstance(row, Row)
                    rows.append((piece, index.get(row.path, 0), row.line))
        except RowError as stopped:
            error = stopped
        masks = [piece.supervised for piece, _, _ in rows]
        return TokenBlock(
            np.concatenate([piece.input_ids for piece, _, _ in rows] or [np.empty(0, np.int32)]),
            np.concatenate(masks or [np.empty(0, bool)]),
            np.array([len(mask) for mask in masks], dtype=np.int32),
            np.array([mask.sum() for mask in masks], dtype=np.int32),
            np.array([piece.branches or (0, 0) for piece, _, _ in rows], dtype=np.int32).reshape(-1, 2),
            np.array([piece.value for piece, _, _ in rows], dtype=np.float32),
            np.array([file for _, file, _ in rows], dtype=np.int32),
            np.array([line for _, _, line in rows], dtype=np.int64),
            account,
            error,
        )

    def _encoded(self, block: Block) -> Iterator[tuple[Row | RowError, tuple[Example, list[Encoded]] | RowError]]:
        """Every row with what it becomes, some hundred at a time: the tokenizer is faster that way. A pair has two sides."""
        settings, rows = self.settings, block.rows()
        while part := list(islice(rows, _ROWS_AT_ONCE)):
            results: list[Example | RowError] = [self._example(row) for row in part]
            good = [
                (row.where, side)
                for row, result in zip(part, results, strict=True)
                if not isinstance(result, RowError)
                for side in sides_of(result)
            ]
            encoded = iter(
                encode_batch(
                    [example for _, example in good],
                    self.tokenizer,
                    where=[where for where, _ in good],
                    control_tokens=settings.control_tokens,
                    system_policy=settings.system_policy,
                )
            )
            for row, result in zip(part, results, strict=True):
                if isinstance(result, RowError):
                    yield row, result
                    continue
                tokens = [next(encoded) for _ in sides_of(result)]
                wrong = next((side for side in tokens if isinstance(side, RowError)), None)
                yield row, wrong or (result, [side for side in tokens if isinstance(side, Encoded)])

    def _example(self, row: Row | RowError) -> Example | RowError:
        if isinstance(row, RowError):
            return row
        try:
            return to_example(row, SHAPES[self.settings.shape], self.settings.columns, self.settings.train_on)
        except RowError as error:
            return error

    def _pieces(
        self, row: Row | RowError, result: tuple[Example, list[Encoded]] | RowError, account: Account
    ) -> Iterator[Piece]:
        if isinstance(result, RowError):
            if self.settings.on_bad_row == "error":
                raise result
            account.bad += 1
            account.drop(result.reason, str(result))
            return
        example, encoded = result
        pieces = [_piece(side, example) for side in encoded]
        whole = pieces[0] if len(pieces) == 1 else join(*pieces)
        account.tokens_read += len(whole.input_ids)
        account.endless_turns += any(side.turn_end_missing for side in encoded)
        account.reasoning_lost += any(side.reasoning_lost for side in encoded)
        for side, tokens in zip(sides_of(example), encoded, strict=True):
            if isinstance(side, Chat) and self.settings.control_tokens == "text":
                account.pasted.update(tokens.pasted)
            else:
                account.acting.update(special_tokens_in_content(side, self.tokenizer))
        fitted = self._fit(whole, row, account) if whole.branches is None else self._fit_pair(whole, row, account)
        for piece in fitted.pieces:
            account.tokens += len(piece.input_ids)
            account.labels += int(piece.supervised.sum())
            account.largest_id = max(account.largest_id, int(piece.input_ids.max()))
            yield piece

    def _fit_pair(self, whole: Piece, row: Row | RowError, account: Account) -> Fitted:
        longest = self.settings.max_length
        size = max(len(side.input_ids) for side in sides(whole))
        if size <= longest:
            return Fitted([whole])
        if self.settings.overlength == "error":
            raise self._too_long(row, size)
        piece, ends = fit_pair(whole, longest) if self.settings.overlength == "truncate" else (None, 0)
        if piece is None:
            account.drop(f"longer than {longest} tokens")
            return Fitted([])
        account.truncated += 1
        account.answers_cut += ends
        return Fitted([piece])

    def _too_long(self, row: Row | RowError, size: int) -> RowError:
        return RowError(
            row.where,
            f"longer than data.max_length {self.settings.max_length}",
            f"{size} tokens",
            "raise it, or set data.overlength to truncate, split or drop",
        )

    def _fit(self, whole: Piece, row: Row | RowError, account: Account) -> Fitted:
        longest = self.settings.max_length
        if len(whole.input_ids) <= longest:
            if not whole.learns:
                account.unlearnable += 1
                account.drop("nothing to learn")
                return Fitted([])
            return Fitted([whole])
        if self.settings.overlength == "error":
            raise self._too_long(row, len(whole.input_ids))
        if self.settings.overlength == "drop":
            account.drop(f"longer than {longest} tokens")
            return Fitted([])
        cut = truncate if self.settings.overlength == "truncate" else split
        fitted = cut(whole, longest, self.tokenizer, self.controls)
        if not fitted.pieces:
            account.unlearnable += 1
            account.drop(f"no label within {longest} tokens")
            return fitted
        account.answers_cut += fitted.answers_cut
        account.answers_lost += fitted.answers_lost
        if cut is truncate:
            account.truncated += 1
        else:
            account.split += 1
            account.pieces += len(fitted.pieces)
        return fitted


def _piece(encoded: Encoded, example: Example) -> Piece:
    value = float(example.desirable) if isinstance(example, Judged) else np.nan
    piece = Piece(np.asarray(encoded.input_ids, np.int32), np.asarray(encoded.labels) != -100, value=value)
    piece.supervised[:1] = False
    return piece
