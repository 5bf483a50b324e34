"""The teacher of a distillation: loaded frozen, or asked once, before the first step, for its likeliest tokens."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial as bound
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.attention import choose_attention
from toolkit.checksum import checksum, figures_name
from toolkit.config import ModelConfig
from toolkit.data.cache import cache_folder
from toolkit.data.teaching import Teaching
from toolkit.errors import UserError
from toolkit.models import base_dtype, check_model_source, load_model, load_tokenizer
from toolkit.objectives.distillation import Distillation, teacher_log_probs
from toolkit.start import Run
from toolkit.steps import Feed

_ROWS_AT_ONCE = 1024
_POSITIONS_AT_ONCE = 1024


def check_teacher(config: ModelConfig) -> None:
    """Raises UserError for a teacher that is not there, in no time."""
    with _in_its_name():
        check_model_source(config, frozen=True)


def load_teacher(run: Run, config: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The teacher, frozen and in eval mode, whole on the CPU of each process. Raises UserError unless it has the vocabulary of
    `tokenizer`, or where the layout splits rows or matrices."""
    layout = run.layout
    if layout.choices.context > 1 or layout.choices.tensor > 1:
        raise UserError(
            "parallelism_config: a teacher works on whole rows with whole matrices; set tp_size and cp_size to 1"
        )
    with _in_its_name():
        check_vocabularies(tokenizer, load_tokenizer(config))
        of = replace(config, dtype=base_dtype(config, layout.mixed_precision))
        teacher = load_model(of, seed=0, frozen=True).eval().requires_grad_(False)
    if run.config.train.padding_free:
        teacher.set_attn_implementation(choose_attention(config.attn_implementation, layout.device))
    run.say(
        f"teacher: {config.name_or_path}, {teacher.num_parameters():,} parameters in {of.dtype}, whole on each process"
    )
    return teacher


@contextmanager
def _in_its_name() -> Iterator[None]:
    """A UserError about a key of the model section is one about the teacher's."""
    keys = "|".join(item.name for item in fields(ModelConfig))
    try:
        yield
    except UserError as error:
        raise UserError(re.sub(rf"(?<![\w./])model\.({keys})\b", r"teacher.\1", str(error))) from None


def check_vocabularies(mine: PreTrainedTokenizerBase, theirs: PreTrainedTokenizerBase) -> None:
    """Raises UserError unless the teacher's tokenizer, `theirs`, has the same token for every id."""
    one, other = mine.get_vocab(), theirs.get_vocab()
    if one == other:
        return
    token = min(
        (token for token in one.keys() | other.keys() if one.get(token) != other.get(token)),
        key=lambda token: (one.get(token, other.get(token)), token),
    )
    raise UserError(
        f"model.name_or_path: teacher and student have different vocabularies ({len(other):,} and {len(one):,} tokens; the "
        f"first difference: {token!r} is {other.get(token)} and {one.get(token)}); it can only teach tokens that both have"
    )


def with_teaching(
    run: Run,
    teacher: PreTrainedModel,
    module: torch.nn.Module,
    feeds: Mapping[str, Feed],
    *,
    data: str,
    count: int,
    temperature: float,
) -> dict[str, Feed]:
    """`feeds`, by name, with the teacher's `count` likeliest tokens of every labelled position, computed now or before.

    data: names the content of all sources. All ranks call it.
    """
    layout, found = run.layout, {}
    vocabulary = int(teacher.get_output_embeddings().weight.shape[0])  # type: ignore[union-attr, index]
    if count > vocabulary:
        raise UserError(
            f"objective.top_k: {count:,} tokens of a vocabulary of {vocabulary:,}; use fewer, or none to ask for all"
        )
    root = layout.on_main(lambda: cache_folder(run.config.data.cache_dir, "teacher"))
    teacher = teacher.to(layout.device)  # type: ignore[arg-type]
    weights = checksum(layout, teacher)
    for name, feed in feeds.items():
        entry = root / figures_name(layout, teacher, weights, feed.rows, f"{name}: {data}", count, temperature)
        said = "computed before, taken from the cache"
        if not layout.on_main(entry.is_dir):
            said = "computed"
            _compute(run, teacher, feed, entry, count, temperature)
        run.say(f"teacher: the {count} likeliest tokens of {feed.rows.label_tokens:,} labelled {name} tokens: {said}")
        if not entry.is_dir():
            raise UserError(f"data.cache_dir: {entry} is not seen by all processes; use a folder that all nodes share")
        teaching = Teaching.open(entry, feed.rows.labels_per_row)
        found[name] = replace(feed, rows=replace(feed.rows, teaching=teaching))
    teacher.to("meta")  # type: ignore[arg-type]  # its weights are let go of, whoever else holds it
    return found


@torch.no_grad()
def _compute(run: Run, teacher: PreTrainedModel, feed: Feed, entry: Path, count: int, temperature: float) -> None:
    """Every rank does its share of the rows, the main process writes. There is a folder only when it is whole."""
    layout, rows = run.layout, feed.rows
    partial = entry.with_name(f"{entry.name}.{os.getpid()}.partial")
    ask, labels = Distillation(teacher=teacher), np.cumsum([0, *rows.labels_per_row])
    vocabulary = int(teacher.get_output_embeddings().weight.shape[0])  # type: ignore[union-attr, index]
    layout.on_main(bound(_written, partial, bound(Teaching.create, partial, int(labels[-1]), count)))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, len(rows))
        first, size = int(labels[start]), int(labels[stop] - labels[start])
        ids = torch.zeros(size, count, dtype=torch.int32, device=layout.device)
        log_probs = torch.zeros(size, count, dtype=torch.float32, device=layout.device)
        for numbers, batch in feed.parts(np.arange(start, stop)):
            run.beat("teacher")
            taught = ask.taught(batch.to(layout.device))
            assert taught.hidden is not None
            assert taught.head is not None
            places = np.concatenate([np.arange(labels[n], labels[n + 1]) - first for n in numbers] or [np.arange(0)])
            for part in (slice(s, s + _POSITIONS_AT_ONCE) for s in range(0, len(places), _POSITIONS_AT_ONCE)):
                best = teacher_log_probs(taught.hidden[part], taught.head, temperature, vocabulary).topk(count)
                here = torch.from_numpy(places[part]).to(layout.device)
                ids[here], log_probs[here] = best.indices.int(), best.values
        arrays = layout.total(ids).cpu().numpy(), layout.total(log_probs).cpu().numpy()
        layout.on_main(bound(_written, partial, bound(Teaching.write, partial, first, *arrays)))
    layout.on_main(bound(_written, partial, bound(partial.rename, entry)))


def _written(partial: Path, write: Callable[[], object]) -> None:
    """On the main process. Raises UserError where it cannot, and leaves nothing behind."""
    try:
        write()
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(
            f"{partial.parent}: cannot keep the teacher's likeliest tokens there: {error.strerror}; set data.cache_dir to a "
            "place with room, or let the teacher work beside the student (objective.top_k: null)"
        ) from None
