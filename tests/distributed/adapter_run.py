"""Three steps of an adapter on a frozen bf16 base, by the toolkit's own parts; a line of JSON from every rank."""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch.distributed.tensor import DTensor

from toolkit.attention import ISOLATED
from toolkit.config import ModelConfig, TrainConfig, WatchConfig
from toolkit.data.plan import BatchPlan
from toolkit.data.split import Capacity
from toolkit.data.tokens import TokenRows
from toolkit.health import Health
from toolkit.layout import build_layout
from toolkit.loop import StepResult, Wishes, train
from toolkit.loss_scale import LossScale
from toolkit.models import load_model
from toolkit.monitor.heartbeat import Heartbeat
from toolkit.objectives.causal_lm import CausalLanguageModeling
from toolkit.optim import Schedule
from toolkit.parallel.spread import spread
from toolkit.run import rehearse
from toolkit.steps import Feed


def main() -> None:
    layout = build_layout()
    config = ModelConfig(name_or_path="recipes/demo/model", random_init=True, dtype="bfloat16")
    base = load_model(config, seed=0)
    base.set_attn_implementation(ISOLATED)
    torch.manual_seed(1)
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(base, adapter, autocast_adapter_dtype=True)  # fp32 adapters
    frozen = {f"model.{n}": p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    module, optimizer = spread(layout, model, CausalLanguageModeling(), TrainConfig())
    ids = np.random.default_rng(0).integers(3, 600, (8, 12)).tolist()
    rows = TokenRows.build([(row, row) for row in ids])
    rehearse(layout, module, optimizer, rows, padding_free=True, pad_token_id=0)
    results: list[StepResult] = []
    places: set[tuple[int, ...]] = set()  # of the gradients after each step; none where they are let go

    def after_step(step: int, wished: Wishes) -> None:
        held = [p.grad.data_ptr() for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        places.add(tuple(held))

    train(
        layout, module, optimizer,
        Feed(rows, Capacity(None, 1), layout.dp_rank, layout.dp_size, True, 0).steps(BatchPlan(8, 4, 0, False), 0, 3),
        schedule=Schedule(1e-2, 3, 0, "constant"), max_grad_norm=1.0, seed=0, health=Health(WatchConfig(), print),
        loss_scale=LossScale(), beat=Heartbeat(), say=print, record=results.append, wishes=Wishes,
        after_step=after_step,
    )  # fmt: skip
    parameters = dict(layout.accelerator.unwrap_model(module).named_parameters())
    whole = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in parameters.items() if n in frozen}
    told = {
        "losses": [result.loss for result in results],
        "grad_norms": [result.grad_norm for result in results],
        "adapters": sorted({str(p.dtype) for p in parameters.values() if p.requires_grad}),
        "base_unchanged": all(torch.equal(value, frozen[name]) for name, value in whole.items()),
        "frozen": len(whole),
        "gradients_held": [len(place) for place in places],
    }
    sys.stdout.write(json.dumps(told) + "\n")  # one write, so that lines of several ranks cannot mix
    sys.stdout.flush()
    layout.wait()


if __name__ == "__main__":
    main()
