"""From the `data` section of a config to tokenized rows: each source tokenized once, and every row accounted for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from toolkit.config import DataConfig
from toolkit.data.account import Account
from toolkit.data.cache import Progress, cache_folder, obtain
from toolkit.data.chat import turn_end_ids
from toolkit.data.fingerprint import content_digest, dataset_digest, fingerprint
from toolkit.data.mixture import Mixture, rows_per_epoch
from toolkit.data.parallel import ordered_map
from toolkit.data.permutation import permute
from toolkit.data.prepared import PreparedData, PreparedSource, prompts_of
from toolkit.data.rows import Row, RowError
from toolkit.data.settings import Note, decide_settings
from toolkit.data.shapes import SUPERVISED
from toolkit.data.sources import find_sources, read_blocks
from toolkit.data.sources.source import Block, ParsedBlock, Source
from toolkit.data.store import StoreWriter, open_store, read_report
from toolkit.data.stream import RowStream, open_stream
from toolkit.data.template import load_chat_template
from toolkit.data.tokenizing import Tokenizing
from toolkit.data.tokens import TokenRows
from toolkit.errors import UserError


def quiet(what: str, done: int, total: int) -> None:
    """A `Progress` that shows nothing."""


def prepare(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    seed: int,
    prompts: int,
    note: Note,
    progress: Progress = quiet,
    accepted: Collection[str] = SUPERVISED,
    pack: Callable[[TokenRows], TokenRows] | None = None,
    max_steps: int | None = None,
) -> PreparedData:
    """Read, check, tokenize and mask the training and evaluation rows, or take them from the cache.

    prompts: how many evaluation rows are also kept as prompts for generation. `note` gets every line that the user
    should read: shapes detected, columns ignored, rows truncated and dropped, proportions of a mixture. `accepted`:
    names of the shapes that the recipe learns from. `pack`: makes blocks of documents. `max_steps`: train.max_steps, needed for
    streaming. Raises UserError for a bad row, a missing file, a missing chat template, or when nothing is left to learn from.
    """
    check_options(config, max_steps)
    if config.chat_template is not None:
        tokenizer.chat_template = load_chat_template(config.chat_template)
    found = {key: find_sources(config, key) for key in ("train", "eval") if getattr(config, key) is not None}
    folder = cache_folder(config.cache_dir)

    def tokenized(key: str) -> list[PreparedSource]:
        return [_tokenized(one, key, config, tokenizer, folder, note, progress, accepted) for one in found[key]]

    stream: RowStream | None = None
    sources: list[PreparedSource] = []
    if config.streaming:
        stream = open_stream(config, tokenizer, seed=seed, note=note, accepted=accepted)
        rows = stream.sample()
    else:
        sources = tokenized("train")
        rows = TokenRows.of(*(part.store for part in sources))
    held_out: TokenRows | None = None
    eval_sources: list[PreparedSource] = []
    if "eval" in found:
        eval_sources = tokenized("eval")
        held_out = TokenRows.of(*(part.store for part in eval_sources))
    elif config.eval_fraction > 0:
        rows, held_out = _hold_out(rows, sources, config.eval_fraction, seed, note)
        eval_sources = sources
    if pack is not None:
        rows, held_out = pack(rows), None if held_out is None else pack(held_out)
    mixture = None if stream is not None else _mixture(rows, sources, seed, note)
    turn_end = turn_end_ids(tokenizer) if tokenizer.chat_template else []
    asked = [] if held_out is None else prompts_of(held_out, eval_sources, tokenizer, prompts)
    return PreparedData(rows, held_out, asked, turn_end, mixture, sources, eval_sources, stream)


def check_options(config: DataConfig, max_steps: int | None) -> None:
    """Raise `UserError` for options that are missing or contradict each other."""
    if config.streaming and max_steps is None:
        raise UserError("data.streaming: the number of rows is unknown; set train.max_steps")
    if config.train is None:
        raise UserError("data.train is not set; give a file, a folder, a glob or a hub name")
    if config.eval is not None and config.eval_fraction > 0:
        raise UserError("data.eval and data.eval_fraction are both set; keep one")
    if config.eval_fraction >= 1:
        raise UserError(f"data.eval_fraction: must be below 1, got {config.eval_fraction:g}")


def _tokenized(
    source: Source,
    key: str,
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    note: Note,
    progress: Progress,
    accepted: Collection[str],
) -> PreparedSource:
    """The tokenized rows of one source, made now or before."""
    label = f"{key} {source.name}"
    settings = decide_settings(source, config, tokenizer, label, note, accepted)
    paths = tuple(map(str, source.files)) or (str(source.dataset),)
    name = fingerprint(source, _content(source, progress), tokenizer, settings, source.spec.max_rows)

    def make(entry: Path, told: Progress) -> None:
        """Tokenize into a new folder."""
        before = [file.stat() for file in source.files]
        work = Tokenizing(tokenizer, settings, paths)
        account = Account()
        with StoreWriter(entry) as writer:
            blocks = _counted(limited(read_blocks(source), source.spec.max_rows), source, told)
            for block in ordered_map(work, blocks, config.num_proc):
                if block.error is not None:
                    raise UserError(str(block.error))
                account.add(block.account)
                writer.append(block)
            if [(s.st_size, s.st_mtime_ns) for s in before] != [
                (s.st_size, s.st_mtime_ns) for s in (file.stat() for file in source.files)
            ]:
                raise UserError(f"{label}: a file was changed while it was read; start again when it is finished")
            writer.finish({"account": account.to_json(), "source": str(source.spec.path)})

    entry, cached = obtain(folder, name, make, progress)
    account = Account.from_json(read_report(entry)["account"])
    _say(account, label, config, cached, note)
    _check(account, label, source, config)
    return PreparedSource(source, settings, account, open_store(entry, paths), name, cached)


def _content(source: Source, progress: Progress) -> str:
    if source.dataset is not None:
        return dataset_digest(source)
    done, total = 0, source.total_bytes

    def read(size: int) -> None:
        nonlocal done
        done += size
        progress(f"checking {source.name}", done, total)

    return content_digest(source.files, read)


def limited(blocks: Iterator[Block], max_rows: int | None) -> Iterator[Block]:
    """The first `max_rows` rows, bad ones included."""
    left = max_rows
    for block in blocks:
        if left is None:
            yield block
            continue
        rows: list[Row | RowError] = []
        for row in block.rows():
            if len(rows) == left:
                break
            rows.append(row)
        left -= len(rows)
        yield ParsedBlock(block.size, rows)
        if left == 0:
            return


def _counted(blocks: Iterator[Block], source: Source, progress: Progress) -> Iterator[Block]:
    done, total = 0, source.total_bytes
    for block in blocks:
        yield block
        done += block.size
        progress(f"tokenizing {source.name}", done, total)


def _check(account: Account, label: str, source: Source, config: DataConfig) -> None:
    """Raise `UserError` when nothing is left, or when more was lost than the user can have meant."""
    hint = "; raise data.max_length?" if account.unlearnable else ""
    first = f"; the first: {account.examples[0]}" if account.examples else ""
    if account.read == account.dropped.total():
        raise UserError(f"{label}: 0 usable rows in {source.spec.path}: {account}{hint}{first}")
    lost = account.bad + account.unlearnable
    if lost > config.max_bad_fraction * account.read:
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in account.dropped.most_common())
        raise UserError(
            f"{label}: dropped {lost:,} of {account.read:,} rows ({reasons}), a larger share than data.max_bad_fraction "
            f"({config.max_bad_fraction:g}); correct the data, or raise it{hint}{first}"
        )


def _say(account: Account, label: str, config: DataConfig, cached: bool, note: Note) -> None:
    note(f"{label}: {account}" + ("; tokenized before, taken from the cache" if cached else ""))
    if account.dropped:
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in account.dropped.most_common())
        note(f"  dropped {account.dropped.total():,} of {account.read:,} rows ({reasons})")
        for example in account.examples:
            note(f"    {example}")
    if account.tokens_read > account.tokens:
        lost = account.tokens_read - account.tokens
        answers = f", {account.answers_lost:,} answers wholly" if account.answers_lost else ""
        note(
            f"  {account.tokens_read:,} tokens = {account.tokens:,} kept + {lost:,} dropped{answers}; data.overlength is "
            f"{config.overlength}; raise data.max_length ({config.max_length}) to keep longer rows whole"
        )
    for found, how in ((account.pasted, "encoded as text"), (account.acting, "acting as control tokens there")):
        if found:
            shown = ", ".join(f"{token} ({count:,})" for token, count in found.most_common(5))
            note(f"  warning: control tokens occur inside the text of rows, {how} (data.control_tokens): {shown}")
    if account.reasoning_lost:
        note(
            f"  warning: the chat template leaves out the reasoning of learnt messages in {account.reasoning_lost:,} rows; "
            "many templates keep it in the last turn only; data.train_on: last_assistant, or another data.chat_template"
        )
    if account.endless_turns:
        note(
            f"  warning: the chat template ends {account.endless_turns:,} assistant turns with no token, so the model "
            "cannot learn to stop there"
        )


def _hold_out(
    rows: TokenRows, sources: list[PreparedSource], fraction: float, seed: int, note: Note
) -> tuple[TokenRows, TokenRows]:
    """Take a share of each source for evaluation: the same rows for the same seed, on every rank."""
    chosen = []
    for number, part in enumerate(sources):
        first, size = int(rows.starts[number]), len(part.store)
        count = max(1, round(size * fraction))
        if count >= size:
            raise UserError(f"data.eval_fraction: {fraction:g} of {size} rows leaves nothing to train on")
        # Epoch 2^32 is one that no training run reaches: the split has an order of its own.
        chosen.append(first + np.sort(permute(np.arange(count), size, seed + number, epoch=2**32)))
        note(
            f"eval {part.source.name}: {count:,} of {size:,} training rows held out "
            f"(data.eval_fraction {fraction:g}, seed {seed})"
        )
    held = np.concatenate(chosen)
    return rows.select(np.setdiff1d(np.arange(len(rows)), held)), rows.select(held)


def _mixture(rows: TokenRows, sources: list[PreparedSource], seed: int, note: Note) -> Mixture:
    """How an epoch is made of the sources, told as the proportions that come out."""
    sizes = np.diff(rows.starts).tolist()
    specs = [part.source.spec for part in sources]
    counts = rows_per_epoch(sizes, [spec.weight for spec in specs], [spec.repeat for spec in specs])
    if len(sources) > 1 or counts != sizes:
        tokens = [int(rows.lengths[rows.starts[i] : rows.starts[i + 1]].sum(dtype=np.int64)) for i in range(len(sizes))]
        seen = [
            mean * count
            for mean, count in zip((t / s for t, s in zip(tokens, sizes, strict=True)), counts, strict=True)
        ]
        for part, size, count, amount in zip(sources, sizes, counts, seen, strict=True):
            note(
                f"mixture: {part.source.name}: {count:,} rows per epoch ({count / sum(counts):.1%} of rows, "
                f"{amount / sum(seen):.1%} of tokens) from {size:,} rows, {count / size:.3g} passes"
            )
    return Mixture(tuple(sizes), tuple(counts), seed)
