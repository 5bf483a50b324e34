"""Two short rows through the model before training: does it do what the loss and the layout of a micro-batch assume?"""

from __future__ import annotations

import copy

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from toolkit.attention import ISOLATED
from toolkit.data.collate import collate, row_borders
from toolkit.data.tokens import TokenRows
from toolkit.errors import UserError
from toolkit.objectives.head import OutputHead, hidden_states, logits_of
from toolkit.parallel.context import cut_sequence, split_attention

# Largest difference of a logit, relative to the largest logit, that rounding explains; a leak or a missed scaling is
# of the order of one.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 6e-2}


@torch.no_grad()
def probe_model(model: PreTrainedModel, rows: TokenRows, *, padding_free: bool) -> None:
    """Compare logits of two rows in one micro-batch with those of each row alone, as transformers computes them.

    Raises UserError if rows laid end to end see each other (recurrent and hybrid models do), or if the model makes its
    logits in a way the chunked loss does not know. Costs two forward passes of a few tokens.
    """
    was_training, chosen = model.training, model.config._attn_implementation
    model.eval()
    parts = [(rows.ids(i)[:9].tolist(), rows.labels(i)[:9].tolist()) for i in _two_rows(rows)]
    pair = TokenRows.build(parts)
    alone = []
    for ids, _ in parts:
        if chosen == ISOLATED:
            model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
        alone.append(model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0].float())
        model.set_attn_implementation(chosen)
    batch = collate(pair, np.arange(2), padding_free=padding_free, pad_token_id=0).to(model.device)
    hidden = hidden_states(model, batch)
    if padding_free:
        together = [hidden[0, start:end] for start, end in row_borders(batch)]
    else:
        together = [hidden[row, : len(ids)] for row, (ids, _) in enumerate(parts)]
    model.train(was_training)
    head = OutputHead.of(model)
    differences = []
    for states, expected in zip(together, alone, strict=True):
        size = expected.abs().max().clamp(min=1e-6)
        differences.append(float((logits_of(states, head) - expected).abs().max() / size))
    tolerance = _TOLERANCE.get(model.dtype, 6e-2)
    if differences[0] > tolerance:
        # The first row has nothing before it that could leak.
        raise UserError(
            f"{type(model).__name__} makes its logits in a way the chunked loss does not know "
            f"(difference {differences[0]:.2g}); this model cannot be trained yet"
        )
    if differences[1] > tolerance:
        raise UserError(
            f"{type(model).__name__} lets rows of a padding-free micro-batch see each other (difference "
            f"{differences[1]:.2g}); set train.padding_free: false"
        )


def one_layer(model: PreTrainedModel) -> PreTrainedModel:
    """A model like this one, with one layer and random weights: what is probed where no process has all of `model`."""
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    text.num_hidden_layers = 1
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, attn_implementation=model.config._attn_implementation)


@torch.no_grad()
def probe_parts(model: PreTrainedModel, rows: TokenRows, group: torch.distributed.ProcessGroup) -> None:
    """Compare hidden states of two rows that are cut over the processes of `group` with those of the uncut rows.

    Raises UserError for a model in which positions meet anywhere but in attention (convolutions, recurrences).
    """
    was_training, chosen = model.training, str(model.config._attn_implementation)
    model.eval()
    pair = TokenRows.build([(rows.ids(i)[:9].tolist(), rows.labels(i)[:9].tolist()) for i in _two_rows(rows)])
    batch = collate(pair, np.arange(2), padding_free=True, pad_token_id=0)
    if chosen == "flash_attention_2":
        chosen_here = ISOLATED  # this runs on the host
        model.set_attn_implementation(ISOLATED)
    else:
        chosen_here = chosen
    whole = hidden_states(model, batch)
    rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    part = cut_sequence(batch, rank, size, 0)
    model.set_attn_implementation(split_attention(chosen_here, group))
    mine = hidden_states(model, part)
    model.set_attn_implementation(chosen)
    model.train(was_training)
    wanted = whole[:, rank * mine.shape[1] :][:, : mine.shape[1]]
    difference = float((mine[:, : wanted.shape[1]] - wanted).abs().max() / whole.abs().max()) if wanted.numel() else 0.0
    worst = torch.tensor(difference)
    torch.distributed.all_reduce(worst, op=torch.distributed.ReduceOp.MAX, group=group)
    if worst > _TOLERANCE.get(model.dtype, 6e-2):
        raise UserError(
            f"parallelism_config_cp_size: {type(model).__name__} mixes positions elsewhere than in attention, so its rows "
            f"cannot be cut (difference {worst:.2g}); set it to 1"
        )


def _two_rows(rows: TokenRows) -> list[int]:
    """The first row, and one whose beginning differs where there is one: equal rows would hide a leak."""
    first = rows.ids(0)[:9].tolist()
    other = next((i for i in range(min(len(rows), 100)) if rows.ids(i)[:9].tolist() != first), 0)
    return [0, other]
