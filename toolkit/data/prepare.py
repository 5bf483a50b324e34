"""From the `data` section of a config to tokenized rows, with an account of every row that was read."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np
from transformers import PreTrainedTokenizerBase

from toolkit.config import DataConfig
from toolkit.data.chat import encode, prompt_ids, special_tokens_in_content, turn_end_ids
from toolkit.data.plan import permute
from toolkit.data.rows import Row, RowError
from toolkit.data.shapes import SHAPES, detect_shape, to_example, used_columns
from toolkit.data.sources import read_rows
from toolkit.data.template import load_chat_template, require_chat_template
from toolkit.data.tokens import TokenRows
from toolkit.errors import UserError

Note = Callable[[str], None]


@dataclass
class Account:
    """What became of the rows of one source: read = whole + truncated + dropped."""

    read: int = 0
    truncated: int = 0
    answers_cut: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    special_tokens: Counter[str] = field(default_factory=Counter)
    endless_turns: int = 0

    def __str__(self) -> str:
        lost = self.dropped.total()
        reasons = ", ".join(f"{reason}: {count}" for reason, count in self.dropped.most_common())
        return (
            f"{self.read:,} rows = {self.read - self.truncated - lost:,} whole + {self.truncated:,} truncated"
            + (f" ({self.answers_cut:,} lost labelled tokens)" if self.answers_cut else "")
            + f" + {lost:,} dropped"
            + (f" ({reasons})" if lost else "")
        )


@dataclass(frozen=True)
class Prompt:
    """What to ask for one evaluation row, and the right answer."""

    row: int
    ids: list[int]
    reference: str


@dataclass(frozen=True)
class PreparedData:
    """Rows to train and to evaluate on, prompts of evaluation rows, and the ids that end an assistant turn."""

    train: TokenRows
    eval: TokenRows | None
    prompts: list[Prompt]
    turn_end: list[int]


@dataclass(frozen=True)
class _Encoded:
    input_ids: list[int]
    labels: list[int]
    prompt: tuple[list[int], str] | None
    special_tokens: list[str]
    turn_end_missing: bool


def prepare(
    config: DataConfig, tokenizer: PreTrainedTokenizerBase, *, seed: int, prompts: int, note: Note
) -> PreparedData:
    """Read, check, tokenize and mask the training and evaluation rows.

    prompts: how many evaluation rows are also kept as prompts for generation. `note` gets every line that the user
    should read: shapes detected, columns ignored, rows truncated and dropped. Raises UserError for a bad row, a missing
    file, a missing chat template, or when nothing is left to learn from.
    """
    if config.train is None:
        raise UserError("data.train is not set; give a file, a folder, a glob or a hub name")
    if config.chat_template is not None:
        tokenizer.chat_template = load_chat_template(config.chat_template)
    if config.eval is not None and config.eval_fraction > 0:
        raise UserError("data.eval and data.eval_fraction are both set; keep one")
    if config.eval_fraction >= 1:
        raise UserError(f"data.eval_fraction: must be below 1, got {config.eval_fraction:g}")
    keep_prompts = prompts > 0 and config.eval_fraction > 0
    rows, asked = _tokenize(config, config.train, config.train_split, "train", tokenizer, keep_prompts, note)
    held_out: TokenRows | None = None
    if config.eval is not None:
        held_out, asked = _tokenize(config, config.eval, config.eval_split, "eval", tokenizer, prompts > 0, note)
    elif config.eval_fraction > 0:
        rows, held_out, asked = _hold_out(rows, asked, config.eval_fraction, seed, note)
    turn_end = turn_end_ids(tokenizer) if tokenizer.chat_template else []
    return PreparedData(rows, held_out, asked[:prompts], turn_end)


def _hold_out(
    rows: TokenRows, prompts: list[Prompt], fraction: float, seed: int, note: Note
) -> tuple[TokenRows, TokenRows, list[Prompt]]:
    """Take a share of the rows for evaluation: the same ones for the same seed, on every rank."""
    count = max(1, round(len(rows) * fraction))
    if count >= len(rows):
        raise UserError(f"data.eval_fraction: {fraction:g} of {len(rows)} rows leaves nothing to train on")
    # Epoch 2^32 is one that no training run reaches: the split has an order of its own.
    chosen = np.sort(permute(np.arange(count), len(rows), seed, epoch=2**32))
    rest = np.setdiff1d(np.arange(len(rows)), chosen)
    place = {int(row): new for new, row in enumerate(chosen)}
    kept = [replace(p, row=place[p.row]) for p in prompts if p.row in place]
    note(f"eval: {count:,} of {len(rows):,} training rows held out (data.eval_fraction {fraction:g}, seed {seed})")
    return rows.select(rest), rows.select(chosen), kept


def _tokenize(
    config: DataConfig,
    source: str | list[str],
    split: str,
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    keep_prompts: bool,
    note: Note,
) -> tuple[TokenRows, list[Prompt]]:
    stream = islice(read_rows(source, split=split, delimiter=config.delimiter), config.max_rows)
    first = next(stream, None)
    if first is None:
        raise UserError(f"data.{name}: 0 usable rows in {source}: there is no row in it")
    shape = detect_shape(first.values.keys(), config.columns)
    if shape.name not in ("text", "prompt+completion") or isinstance(first.values.get("prompt"), list):
        require_chat_template(tokenizer)
    ignored = sorted(set(first.values) - used_columns(shape, config.columns))
    note(f"{name}: {source}: shape {shape.name}" + (f"; columns not used: {', '.join(ignored)}" if ignored else ""))

    account, prompts = Account(), []

    def kept() -> Iterator[tuple[list[int], list[int]]]:
        row = 0
        encoder = _Encoder(tokenizer, shape.name, config.columns, keep_prompts)
        for where, encoded in _encode_all(chain([first], stream), encoder, config.num_proc):
            fitted = _fit(encoded, where, config, account)
            if fitted is None:
                continue
            if encoded.prompt is not None:
                prompts.append(Prompt(row, *encoded.prompt))
            row += 1
            yield fitted

    rows = TokenRows.build(kept())
    _say(account, name, config, note)
    if len(rows) == 0:
        raise UserError(f"data.{name}: 0 usable rows in {source}: {account}; raise data.max_length?")
    return rows, prompts


def _fit(encoded: _Encoded, where: str, config: DataConfig, account: Account) -> tuple[list[int], list[int]] | None:
    """Apply `data.max_length` and count; None for a row that is dropped."""
    ids, labels, longest = encoded.input_ids, encoded.labels, config.max_length
    account.read += 1
    account.special_tokens.update(encoded.special_tokens)
    account.endless_turns += encoded.turn_end_missing
    if len(ids) > longest:
        if config.overlength == "error":
            raise UserError(
                f"{where}: {len(ids)} tokens are more than data.max_length {longest}; raise it, or set data.overlength "
                "to truncate or drop"
            )
        if config.overlength == "drop":
            account.dropped[f"longer than {longest} tokens"] += 1
            return None
        cut = any(label != -100 for label in labels[longest:])
        ids, labels = ids[:longest], labels[:longest]
        if all(label == -100 for label in labels[1:]):
            account.dropped[f"no label within {longest} tokens"] += 1
            return None
        account.truncated += 1
        account.answers_cut += cut
    if all(label == -100 for label in labels[1:]):
        account.dropped["nothing to learn"] += 1
        return None
    account.tokens += len(ids)
    return ids, labels


def _say(account: Account, name: str, config: DataConfig, note: Note) -> None:
    note(f"{name}: {account}")
    if account.truncated or account.dropped:
        note(
            f"  data.overlength is {config.overlength}; raise data.max_length ({config.max_length}) to keep longer rows whole"
        )
    if account.special_tokens:
        shown = ", ".join(f"{token} ({count})" for token, count in account.special_tokens.most_common(5))
        note(f"  warning: control tokens occur inside the text of messages and act as control tokens there: {shown}")
    if account.endless_turns:
        note(
            f"  warning: the chat template ends {account.endless_turns:,} assistant turns with no token, so the model "
            "cannot learn to stop there"
        )


@dataclass(frozen=True)
class _Encoder:
    """Everything a row needs to become tokens; sent once to each worker process."""

    tokenizer: PreTrainedTokenizerBase
    shape: str
    columns: dict[str, str] | None
    keep_prompt: bool

    def __call__(self, row: Row) -> tuple[str, _Encoded] | str:
        """(where, tokens) or the message of a row error: exceptions with fields do not survive a process border."""
        try:
            example = to_example(row, SHAPES[self.shape], self.columns)
            encoded = encode(example, self.tokenizer, where=row.where)
            prompt = prompt_ids(example, self.tokenizer, where=row.where) if self.keep_prompt else None
        except RowError as error:
            return str(error)
        special = special_tokens_in_content(example, self.tokenizer)
        return row.where, _Encoded(encoded.input_ids, encoded.labels, prompt, special, encoded.turn_end_missing)


_worker_encoder: _Encoder


def _start_worker(encoder: _Encoder) -> None:
    global _worker_encoder
    _worker_encoder = encoder


def _encode_in_worker(row: Row) -> tuple[str, _Encoded] | str:
    return _worker_encoder(row)


def _encode_all(rows: Iterator[Row], encoder: _Encoder, processes: int) -> Iterator[tuple[str, _Encoded]]:
    if processes == 1:
        yield from map(_or_raise, map(encoder, rows))
        return
    # Spawned, not forked: the parent has threads of torch and tokenizers, which a fork would copy in mid-flight.
    with multiprocessing.get_context("spawn").Pool(processes, _start_worker, (encoder,)) as pool:
        yield from map(_or_raise, pool.imap(_encode_in_worker, rows, chunksize=64))


def _or_raise(result: tuple[str, _Encoded] | str) -> tuple[str, _Encoded]:
    if isinstance(result, str):
        raise UserError(result)
    return result
