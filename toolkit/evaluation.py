"""Evaluation: loss per labelled token with each row once on any number of ranks, and exact match of generated answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.data.prepared import Prompt
from toolkit.layout import Layout
from toolkit.look import look, with_seen
from toolkit.monitor.heartbeat import Beat
from toolkit.objectives import mean
from toolkit.steps import Feed

# Rows that are cut into micro-batches at once: all of a large evaluation set would be laid out in memory otherwise.
_ROWS_AT_ONCE = 4096


@torch.no_grad()
def evaluate_loss(
    layout: Layout,
    module: torch.nn.Module,
    feed: Feed,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    *,
    unit: str = "tokens",
    perplexity: bool = True,
    together: int | None = None,
    beat: Beat | None = None,
) -> dict[str, float]:
    """Mean loss over all labelled tokens of all rows, in eval mode.

    The rows are cut like global batches: every rank runs the same number of micro-batches, so collectives inside the
    forward cannot wait for ever, and fillers weigh nothing, so no row counts twice. Returns `eval_loss`, `eval_UNIT` (an int:
    how many labelled tokens, pairs, ...), `eval_perplexity` (its exponential) where that means something, and the objective's
    own metrics as `eval_NAME`. `together`: rows that an objective which looks at others compares with each other. `ranges`:
    the rows of each source, by name; with more than one, `eval_loss/SOURCE` is each one's own loss.
    """
    was_training = module.training
    module.eval()
    moved = partial(beat, "evaluate") if beat is not None else _still
    totals: dict[tuple[str, str], torch.Tensor] = {}
    for source, (first, stop) in (ranges or {"": (0, len(feed.rows))}).items():
        at_once = together or _ROWS_AT_ONCE
        for start in range(first, stop, at_once):
            row_ids, seen = np.arange(start, min(start + at_once, stop)), None
            if (looked_at := feed.first_look(row_ids)) is not None:
                seen = look(layout, module, looked_at, len(row_ids), moved)
            for batch in feed.micro_batches(row_ids):
                moved()
                output = module(with_seen(batch, seen).to(layout.device))
                for name, value in {"loss": output.loss_sum, "weight": output.weight, **output.metrics}.items():
                    found = torch.atleast_1d(value).double()
                    totals[name, source] = totals[name, source] + found if (name, source) in totals else found
    module.train(was_training)
    layout.shard_again(module)
    keys = [(*key, part) for key in sorted(totals) for part in range(len(totals[key]))]
    values = [value.item() for value in layout.sum(*(totals[name, source][part] for name, source, part in keys))]
    parts: dict[tuple[str, str], list[float]] = {key: [] for key in totals}
    for (name, source, _), value in zip(keys, values, strict=True):
        parts[name, source].append(value)
    sums: dict[str, list[float]] = {}
    for (name, _), here in parts.items():
        sums[name] = [one + other for one, other in zip(sums.get(name, [0.0] * 2), here, strict=False)]
    weight = sums.pop("weight")[0]
    loss = sums.pop("loss")[0] / weight
    result = {"eval_loss": loss, f"eval_{unit}": round(weight)}
    if perplexity:
        result["eval_perplexity"] = math.exp(min(loss, 700.0))
    result |= {f"eval_{name}": mean(total, weight) for name, total in sums.items()}
    if ranges is not None and len(ranges) > 1:
        result |= {f"eval_loss/{source}": parts["loss", source][0] / parts["weight", source][0] for source in ranges}
    return result


def _still() -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Answer:
    """What the model said, beside what was expected."""

    row: int
    prompt: str
    reference: str
    prediction: str

    @property
    def exact(self) -> bool:
        """True when prediction and reference are equal but for surrounding white space."""
        return self.prediction.strip() == self.reference.strip()


@torch.no_grad()
def answer(
    layout: Layout,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    batch_size: int = 32,
    beat: Beat | None = None,
) -> list[Answer]:
    """Greedy answers to all prompts, in their order, on every rank. `model` is whole on each rank, not sharded.

    Prompts are dealt to the ranks; nothing is communicated before all answers are there, so ranks may need different
    numbers of forward passes.
    """
    was_training, home = model.training, model.device
    model.eval().to(layout.device)
    mine = sorted(prompts[layout.dp_rank :: layout.dp_size], key=lambda p: len(p.ids))
    answers: list[Answer] = []
    for start in range(0, len(mine), batch_size):
        part = mine[start : start + batch_size]
        if beat is not None:
            beat("generate")
        longest = max(len(p.ids) for p in part)
        pad = tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(p.ids)) + p.ids for p in part], device=model.device)
        mask = torch.tensor([[0] * (longest - len(p.ids)) + [1] * len(p.ids) for p in part])
        output = model.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=mask.to(model.device),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            pad_token_id=pad,
        )
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in output[:, longest:]]
        texts_in = [tokenizer.decode(p.ids) for p in part]
        answers += [
            Answer(p.row, str(shown), p.reference, str(t)) for p, shown, t in zip(part, texts_in, texts, strict=True)
        ]
    model.train(was_training).to(home)
    # Processes that share rows have answered the same prompts.
    return sorted(layout.gather_objects([] if layout.model_parallel_rank else answers), key=lambda a: a.row)
