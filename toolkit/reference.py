"""What the reference model thinks of the answers of pairs: computed once, before the first step, by the model as it starts.

That is the frozen start model of a whole fine-tuning, the base below a new adapter, and the policy that a continued adapter
was, without a second model in memory. The figures are kept under a name made of all that they depend on: a resumed run, or
another with the same model and data, takes them from there, and after any change they are computed again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from toolkit.checksum import checksum, figures_name
from toolkit.config import RunConfig
from toolkit.data.cache import cache_folder
from toolkit.data.collate import MicroBatch
from toolkit.data.mismatched import MismatchedRows
from toolkit.errors import UserError
from toolkit.layout import Layout
from toolkit.monitor.heartbeat import Beat
from toolkit.objectives import ObjectiveModule, ObjectiveOutput
from toolkit.objectives.log_probs import answer_log_probs
from toolkit.start import Run
from toolkit.steps import Feed

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class _AnswerLogProbs:
    """In the place of an objective: log-probabilities of answers and no loss."""

    unit = "pairs"
    perplexity = False

    def __call__(self, model: PreTrainedModel, batch: MicroBatch) -> ObjectiveOutput:
        """They come as a metric, since those leave the wrapped module as they are."""
        found, _ = answer_log_probs(model, batch)
        return ObjectiveOutput(found.sum(), found.new_zeros(()), {"log_probs": found})


def with_reference(run: Run, module: torch.nn.Module, feeds: Mapping[str, Feed], *, data: str) -> dict[str, Feed]:
    """`feeds`, by name, with what the model, as it is now, thinks of their answers. `data` names the content of all sources.

    All ranks call it, before the first step and before a checkpoint is read.
    """
    layout, config = run.layout, run.config
    model: PreTrainedModel = layout.accelerator.unwrap_model(module).model
    folder = layout.on_main(lambda: cache_folder(config.data.cache_dir, "reference"))
    weights, found = checksum(layout, model), {}
    for name, feed in feeds.items():
        file = folder / f"{figures_name(layout, model, weights, feed.rows, f'{name}: {data}')}.npy"
        known, said = _obtain(run, module, feed, file)
        run.say(f"reference: {_what(config)}; log-probabilities of {len(feed.rows):,} {name} rows: {said}")
        found[name] = replace(feed, rows=replace(feed.rows, reference=known))
    return found


def with_mismatched(run: Run, module: torch.nn.Module, feeds: Mapping[str, Feed], *, data: str) -> dict[str, Feed]:
    """`feeds` with what the model, as it is now, thinks of their answers, and of the answers of other rows to their prompts,
    which are looked at first in every step."""
    seed, longest = run.config.seed, run.config.data.max_length
    for name, feed in feeds.items():
        if len(feed.rows) < 2:
            raise UserError(
                f"data: {len(feed.rows)} {name} row; an answer is compared with those of other rows, of which there are none"
            )
    known = with_reference(run, module, feeds, data=data)
    mismatched = {
        f"mismatched {name}": replace(feed, rows=MismatchedRows(feed.rows.parts, seed=seed, max_length=longest))
        for name, feed in feeds.items()
    }
    for name, feed in mismatched.items():
        assert isinstance(feed.rows, MismatchedRows)
        if feed.rows.shortened:
            run.say(
                f"{name} rows: {feed.rows.shortened:,} of {len(feed.rows):,} answers lose their end (data.max_length {longest})"
            )
    others = with_reference(run, module, mismatched, data=f"{data} {seed} {longest}")
    return {name: replace(feed, looked_at=others[f"mismatched {name}"].rows) for name, feed in known.items()}


def _obtain(run: Run, module: torch.nn.Module, feed: Feed, file: Path) -> tuple[np.ndarray, str]:
    """What `file` holds or is to hold, and whether it did."""
    known = run.layout.on_main(lambda: _stored(file, (len(feed.rows), 2 if feed.rows.paired else 1)))
    if known is not None:
        return known, "computed before, taken from the cache"
    computed = reference_log_probs(run.layout, module, feed, run.beat)
    fault = run.layout.on_main(lambda: _store(file, computed))
    return computed, "computed" if fault is None else f"computed; not kept: {fault}"


def _what(config: RunConfig) -> str:
    if config.adapter.name_or_path is not None:
        return "the start adapter"
    return "the base below the new adapter" if config.adapter.wanted else "the model as it starts"


@torch.no_grad()
def reference_log_probs(layout: Layout, module: torch.nn.Module, feed: Feed, beat: Beat) -> np.ndarray:
    """[rows, 2] fp32: of the better and of the other answer of every pair of `feed`, on every rank, in eval mode; [rows, 1] of
    rows with one answer."""
    plain: ObjectiveModule = layout.accelerator.unwrap_model(module)
    was_training, objective = module.training, plain.objective
    module.eval()
    plain.objective = _AnswerLogProbs()
    answers = 2 if feed.rows.paired else 1
    found = torch.zeros(len(feed.rows), answers, dtype=torch.float32, device=layout.device)
    for start in range(0, len(feed.rows), _ROWS_AT_ONCE):
        for ids, batch in feed.parts(np.arange(start, min(start + _ROWS_AT_ONCE, len(feed.rows)))):
            beat("reference")
            log_probs = module(batch.to(layout.device)).metrics["log_probs"]
            if len(ids):
                found[torch.from_numpy(ids).to(found.device)] = log_probs.view(-1, answers)
    plain.objective = objective
    module.train(was_training)
    layout.shard_again(module)
    return layout.total(found).cpu().numpy()


def _stored(file: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """On the main process."""
    try:
        found = np.load(file, allow_pickle=False)
    except (OSError, ValueError):
        return None
    return found if found.shape == shape and found.dtype == np.float32 else None


def _store(file: Path, values: np.ndarray) -> str | None:
    """On the main process. Whole or not at all; returns why not."""
    partial = file.with_name(f"{file.stem}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as opened:
            np.save(opened, values)
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        return f"{file.parent}: {error.strerror}"
    return None
