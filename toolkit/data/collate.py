"""One micro-batch in memory: rows end to end without padding, or padded to the longest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from toolkit.data.tokens import TokenRows

IGNORE = -100


class RowLengths:
    """Tokens of each row, on their way through a model's layers to its attention. branches: see `MicroBatch`.

    In an object of its own, since torch.compile looks into lists and compiles a layer anew for every number of rows.
    """

    def __init__(self, lengths: list[int], branches: Sequence[tuple[int, int]] = ()) -> None:
        self.lengths = lengths
        self.branches = branches


class Known:
    """What is known of the rows of a micro-batch besides their tokens. All None for a filler.

    reference: [rows, answers of each] their log-probabilities under the reference model.
    teacher: ([label_tokens, k] token ids, their log-probabilities), a teacher's likeliest.
    values: [rows] fp32 what each row is judged to be. places: [rows] where they are in the global batch, and seen:
        [rows of the global batch, any number] what a first look at them all has found; see `look`.

    In an object of its own, and not a dataclass: FSDP2 in bf16 rounds all numbers that it finds in a module's inputs, and it
    opens dataclasses.
    """

    def __init__(
        self,
        *,
        reference: torch.Tensor | None = None,
        teacher: tuple[torch.Tensor, torch.Tensor] | None = None,
        values: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
        seen: torch.Tensor | None = None,
    ) -> None:
        self.reference, self.teacher, self.values, self.places, self.seen = reference, teacher, values, places, seen

    def but(self, **changes: Any) -> Known:
        """The same with changes."""
        return Known(**{**vars(self), **changes})

    def to(self, device: torch.device) -> Known:
        """The same on `device`."""
        return Known(**{name: _moved(value, device) for name, value in vars(self).items()})


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, tuple):
        return tuple(_moved(part, device) for part in value)
    return value.to(device) if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True)
class MicroBatch:
    """What one device computes at once.

    input_ids: [1, seq] with all rows end to end, or [batch, seq] padded on the right.
    targets: same shape; the token that each position should predict, -100 where nothing is learned. The last position
        of a row has none, so no row predicts the first token of the next.
    position_ids: same shape; restarts at 0 in each row.
    attention_mask: [batch, seq] when padded, else None.
    sequence_lengths: tokens of each row when padding-free, else None.
    cu_seq_lens: [rows + 1] int32 borders of the rows when padding-free, else None.
    tokens, label_tokens: real tokens and targets in it; both zero for a filler.
    branches: of pairs of answers when padding-free, where each answer begins in its row, after what both share; padded, a
        pair is two rows.
    answers: [label_tokens] which answer each target belongs to, in the order of `targets[labelled]`: that of row i is i; of
        pair i the better one is 2 i and the other 2 i + 1. rows: how many rows; pairs: how many of them are pairs.
    known: numbers that belong to the rows. Floating-point tensors must stand there and nowhere else; see `Known`.
    """

    input_ids: torch.Tensor
    targets: torch.Tensor
    position_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    sequence_lengths: list[int] | None
    cu_seq_lens: torch.Tensor | None
    tokens: int
    label_tokens: int
    branches: tuple[tuple[int, int], ...] = ()
    answers: torch.Tensor | None = None
    rows: int = 0
    pairs: int = 0
    known: Known = field(default_factory=Known)

    @property
    def labelled(self) -> torch.Tensor:
        """Boolean, shape of `targets`: positions that are learned from."""
        return self.targets != IGNORE

    def to(self, device: torch.device) -> MicroBatch:
        """The same on `device`."""
        moved: dict[str, Any] = {
            f.name: value.to(device) for f in fields(self) if isinstance(value := getattr(self, f.name), torch.Tensor)
        }
        return replace(self, **moved, known=self.known.to(device))

    def model_inputs(self) -> dict[str, Any]:
        """Keyword arguments for the model's forward, in the names transformers gives them."""
        inputs = {"input_ids": self.input_ids, "position_ids": self.position_ids}
        if self.sequence_lengths is None:
            return {**inputs, "attention_mask": self.attention_mask}
        longest = max(self.sequence_lengths)
        return {
            **inputs,
            "sequence_lengths": RowLengths(self.sequence_lengths, self.branches),
            "cu_seq_lens_q": self.cu_seq_lens,
            "cu_seq_lens_k": self.cu_seq_lens,
            "max_length_q": longest,
            "max_length_k": longest,
        }


def collate(rows: TokenRows, row_ids: np.ndarray, *, padding_free: bool, pad_token_id: int) -> MicroBatch:
    """Lay `row_ids` out as one micro-batch; no row ids make a filler, which computes and weighs nothing."""
    if len(row_ids) == 0:
        # Two tokens, the least that exercises every part of the model, so that every collective is met.
        filler = _Rows([np.full(2, pad_token_id, dtype=np.int64)], [np.full(2, IGNORE, dtype=np.int64)])
        return replace(_lay_out(filler, padding_free, pad_token_id), tokens=0)
    pieces = [rows.pieces(i) for i in row_ids]
    flat = [piece for row in pieces for piece in row]
    chosen = _Rows([ids.astype(np.int64) for ids, _ in flat], [_targets(labels) for _, labels in flat])
    branches = [found for i in row_ids if (found := rows.branches(i)) is not None]
    if branches:
        batch = _pairs(chosen, branches, padding_free, pad_token_id)
    else:
        batch = _lay_out(chosen, padding_free, pad_token_id)
        learnt = [sum(int((labels[1:] != IGNORE).sum()) for _, labels in row) for row in pieces]
        batch = replace(batch, answers=torch.from_numpy(np.repeat(np.arange(len(pieces)), learnt)))
    known = Known(
        reference=None if rows.reference is None else torch.from_numpy(rows.reference[row_ids]),
        teacher=None if rows.teaching is None else rows.teaching.of(row_ids),
        values=torch.from_numpy(rows.values[row_ids]),
    )
    return replace(batch, rows=len(row_ids), known=known)


class _Rows(NamedTuple):
    """Token ids and targets of each row."""

    ids: list[np.ndarray]
    targets: list[np.ndarray]


def _pairs(batch_rows: _Rows, branches: list[tuple[int, int]], padding_free: bool, pad_token_id: int) -> MicroBatch:
    """Pairs of answers, which share their prompt, or have one each where rows are padded."""
    assert len(branches) == len(batch_rows.ids), "pairs and other rows do not mix"
    answers = []
    for pair, (targets, (_, second)) in enumerate(zip(batch_rows.targets, branches, strict=True)):
        learnt = targets != IGNORE
        answers.append(np.repeat([2 * pair, 2 * pair + 1], [learnt[:second].sum(), learnt[second:].sum()]))
    if not padding_free:
        batch_rows = _Rows(*(_sides(part, branches) for part in batch_rows))
    batch = _lay_out(batch_rows, padding_free, pad_token_id, branches if padding_free else [])
    return replace(batch, answers=torch.from_numpy(np.concatenate(answers)), pairs=len(branches))


def _sides(rows: list[np.ndarray], branches: list[tuple[int, int]]) -> list[np.ndarray]:
    """Each answer after what it shares with the other, as a row of its own."""
    found = []
    for row, (first, second) in zip(rows, branches, strict=True):
        found += [row[:second], np.concatenate([row[:first], row[second:]])]
    return found


def _lay_out(
    rows: _Rows, padding_free: bool, pad_token_id: int, branches: Sequence[tuple[int, int]] = ()
) -> MicroBatch:
    lengths = [len(row) for row in rows.ids]
    positions = [np.arange(length) for length in lengths]
    for places, (first, second) in zip(positions, branches, strict=False):
        places[second:] -= second - first  # both answers go on from what they share
    sizes = sum(lengths), int(sum((targets != IGNORE).sum() for targets in rows.targets))
    if padding_free:
        borders = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
        layout = [torch.from_numpy(np.concatenate(part))[None] for part in (rows.ids, rows.targets, positions)]
        return MicroBatch(layout[0], layout[1], layout[2], None, lengths, borders, *sizes, branches=tuple(branches))
    padded = [_pad(part, fill) for part, fill in ((rows.ids, pad_token_id), (rows.targets, IGNORE), (positions, 0))]
    mask = _pad([np.ones(n, dtype=np.int64) for n in lengths], 0)
    return MicroBatch(padded[0], padded[1], padded[2], mask, None, None, *sizes)


def _targets(labels: np.ndarray) -> np.ndarray:
    """labels[t] is about token t; targets[t] is what position t predicts, that is token t + 1."""
    return np.append(labels[1:], IGNORE).astype(np.int64)


def _pad(parts: list[np.ndarray], fill: int) -> torch.Tensor:
    out = np.full((len(parts), max(map(len, parts))), fill, dtype=np.int64)
    for row, part in zip(out, parts, strict=True):
        row[: len(part)] = part
    return torch.from_numpy(out)


def row_borders(batch: MicroBatch) -> list[tuple[int, int]]:
    """(start, end) of each row of a padding-free micro-batch."""
    assert batch.cu_seq_lens is not None
    return list(pairwise(batch.cu_seq_lens.tolist()))
