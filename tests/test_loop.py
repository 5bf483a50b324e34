"""One optimizer step, however it is cut: weights of tokens, clipping, precision and the stop before a bad update."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig

import toolkit.attention
from toolkit.config import WatchConfig
from toolkit.data.plan import BatchPlan
from toolkit.data.split import Capacity
from toolkit.data.tokens import TokenRows
from toolkit.errors import NumericalError
from toolkit.evaluation import evaluate_loss
from toolkit.health import Health
from toolkit.layout import Layout, build_layout
from toolkit.loop import StepResult, Wishes, train
from toolkit.loss_scale import LossScale
from toolkit.monitor.gradient_log import names_of
from toolkit.monitor.heartbeat import Heartbeat
from toolkit.objectives import ObjectiveModule, ObjectiveOutput, mean
from toolkit.objectives.causal_lm import CausalLanguageModeling
from toolkit.optim import Schedule
from toolkit.steps import Feed

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def layout() -> Layout:
    return build_layout()


def model_and_rows(label_counts: list[int]) -> tuple[ObjectiveModule, TokenRows]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    model.set_attn_implementation(toolkit.attention.ISOLATED)
    generator = np.random.default_rng(1)
    parts = []
    for count in label_counts:
        ids = generator.integers(3, 61, count + 3).tolist()
        parts.append((ids, [-100] * (len(ids) - count) + ids[len(ids) - count :]))
    return ObjectiveModule(model, CausalLanguageModeling()), TokenRows.build(parts)


def run(layout, module, rows, capacity, *, batch=4, steps=1, max_grad_norm=0.0, peak=0.1) -> list[StepResult]:
    results: list[StepResult] = []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    feed = Feed(rows, capacity, 0, 1, True, 0)
    plan = BatchPlan(len(rows), batch, seed=0, shuffle=False)
    schedule = Schedule(peak, steps, 0, "constant")
    train(
        layout, module, optimizer, feed.steps(plan, 0, steps), schedule=schedule, max_grad_norm=max_grad_norm,
        seed=0, health=Health(WatchConfig(), print), loss_scale=LossScale(), say=print, beat=Heartbeat(),
        record=results.append, wishes=Wishes,
        after_step=lambda step, wished: None,
    )  # fmt: skip
    return results


def plain_mean_loss(module: ObjectiveModule, rows: TokenRows, ids: range) -> torch.Tensor:
    losses, count = torch.zeros(()), 0
    module.model.set_attn_implementation("eager")
    for i in ids:
        logits = module.model(input_ids=torch.tensor(rows.ids(i)[None].astype(np.int64))).logits[0, :-1]
        target = torch.tensor(rows.labels(i)[1:].astype(np.int64))
        losses = losses + functional.cross_entropy(logits, target, reduction="sum")
        count += int((target != -100).sum())
    module.model.set_attn_implementation(toolkit.attention.ISOLATED)
    return losses / count


@pytest.mark.parametrize("rows_at_once", [1, 2, 4])
def test_accumulation_weighs_tokens_not_micro_batches(layout, rows_at_once) -> None:
    """C02, C03: rows of 1, 2, 4 and 33 labelled tokens are one mean over 40 tokens, however they are cut."""
    module, rows = model_and_rows([1, 2, 4, 33])
    expected = plain_mean_loss(module, rows, range(4))
    expected.backward()
    grads = {n: p.grad.clone() for n, p in module.named_parameters()}
    norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in grads.values()))
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    module.zero_grad()
    (result,) = run(layout, module, rows, Capacity(None, rows_at_once))
    assert result.loss == pytest.approx(expected.item(), rel=1e-5)
    assert result.grad_norm == pytest.approx(norm, rel=1e-5)
    assert result.label_tokens == 40
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.detach(), before[name] - 0.1 * grads[name], rtol=1e-5, atol=1e-6)


def test_a_short_last_window_is_normalised_by_its_own_tokens(layout) -> None:
    module, rows = model_and_rows([1, 2, 4, 33, 5, 6])
    results = run(layout, module, rows, Capacity(None, 1), batch=4, steps=2, peak=0.0)
    assert results[1].loss == pytest.approx(plain_mean_loss(module, rows, range(4, 6)).item(), rel=1e-5)
    assert results[1].epoch == 1.0


def test_clipping_uses_the_global_norm_and_logs_it_unclipped(layout) -> None:
    module, rows = model_and_rows([3, 5, 7, 9])
    before = [p.detach().clone() for p in module.parameters()]
    (result,) = run(layout, module, rows, Capacity(None, 2), max_grad_norm=0.01, peak=1.0)
    moved = math.sqrt(
        sum(float(((p.detach() - b).double() ** 2).sum()) for p, b in zip(module.parameters(), before, strict=True))
    )
    assert result.grad_norm > 0.1
    assert moved == pytest.approx(0.01, rel=1e-3)


def test_a_window_without_labels_makes_no_update_and_no_nan(layout) -> None:
    module, rows = model_and_rows([3, 5])
    silent = TokenRows.build((rows.ids(i), [-100] * len(rows.ids(i))) for i in range(len(rows)))
    before = [p.detach().clone() for p in module.parameters()]
    (result,) = run(layout, module, silent, Capacity(None, 1))
    assert (result.loss, result.grad_norm, result.label_tokens) == (0.0, 0.0, 0)
    assert all(torch.equal(p, b) for p, b in zip(module.parameters(), before, strict=True))


class _Poisoned:
    """The usual objective until the third step, then a loss that is not a number."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model, batch) -> ObjectiveOutput:
        self.calls += 1
        output = CausalLanguageModeling()(model, batch)
        return output._replace(loss_sum=output.loss_sum * float("nan")) if self.calls == 3 else output


def test_a_non_finite_step_stops_before_its_update(layout) -> None:
    """E03: the message has the step, the norm and the row ids; the bad step is logged as nan; no weight is touched."""
    module, rows = model_and_rows([3, 5, 7, 9, 4, 6])
    module.objective = _Poisoned()
    results: list[StepResult] = []
    weights: list[torch.Tensor] = []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    feed, plan = Feed(rows, Capacity(None, 2), 0, 1, True, 0), BatchPlan(6, 2, seed=0, shuffle=False)

    def after_step(step: int, wished: Wishes) -> None:
        weights[:] = [p.detach().clone() for p in module.parameters()]

    with pytest.raises(NumericalError, match=r"loss at step 3.*grad_norm nan.*rows \[4, 5\].*step 2") as stopped:
        train(
            layout, module, optimizer, feed.steps(plan, 0, 3), schedule=Schedule(0.1, 3, 0, "constant"),
            max_grad_norm=1.0, seed=0, health=Health(WatchConfig(), print), loss_scale=LossScale(), say=print,
            beat=Heartbeat(), record=results.append, wishes=Wishes, after_step=after_step,
        )  # fmt: skip
    assert "\n" not in str(stopped.value)
    assert math.isnan(results[2].loss)
    assert all(torch.equal(p, w) for p, w in zip(module.parameters(), weights, strict=True))


def test_a_metric_may_have_a_weight_of_its_own() -> None:
    assert mean([6.0], 4.0) == 1.5
    assert mean([6.0, 2.0], 4.0) == 3.0
    assert mean([0.0, 0.0], 4.0) == mean([0.0], 0.0) == 0.0


@pytest.mark.parametrize("rows_at_once", [1, 2, 5])
def test_evaluation_is_total_loss_over_total_tokens(layout, rows_at_once) -> None:
    """E15: rows of 1, 3, 9, 27 and 2 labelled tokens give total / 42 with any evaluation batch."""
    module, rows = model_and_rows([1, 3, 9, 27, 2])
    expected = plain_mean_loss(module, rows, range(5)).item()
    result = evaluate_loss(layout, module, Feed(rows, Capacity(None, rows_at_once), 0, 1, True, 0))
    assert result["eval_loss"] == pytest.approx(expected, rel=1e-5)
    assert result["eval_tokens"] == 42
    assert isinstance(result["eval_tokens"], int), "how it is told from figures"
    assert result["eval_perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)
    assert module.training


def test_the_process_ends_with_3_and_one_line(tmp_path) -> None:
    """The embedded demo with a learning rate that explodes, as a user would meet it."""
    command = [sys.executable, "recipes/sft.py", "--train.learning_rate", "1e30", "--train.max_grad_norm", "0"]
    command += ["--train.max_steps", "9", "--generate_rows", "0", "--output_dir", str(tmp_path / "run")]
    command += ["--train.optimizer", "sgd", "--data.max_rows", "40"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("stopped: non-finite") == 1
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert math.isnan(json.loads(last)["loss"]) or math.isnan(json.loads(last)["grad_norm"]) or "Infinity" in last
    assert not (tmp_path / "run" / "model").exists()


def test_the_evaluation_of_each_source_is_its_own_and_the_total_is_of_all_tokens(layout) -> None:
    module, rows = model_and_rows([1, 3, 9, 27, 2])
    feed = Feed(rows, Capacity(None, 2), 0, 1, True, 0)
    found = evaluate_loss(layout, module, feed, {"a": (0, 2), "b": (2, 5)})
    assert found["eval_loss/a"] == pytest.approx(plain_mean_loss(module, rows, range(2)).item(), rel=1e-5)
    assert found["eval_loss/b"] == pytest.approx(plain_mean_loss(module, rows, range(2, 5)).item(), rel=1e-5)
    assert found["eval_loss"] == pytest.approx(plain_mean_loss(module, rows, range(5)).item(), rel=1e-5)
    assert "eval_loss/a" not in evaluate_loss(layout, module, feed, {"a": (0, 5)})


def test_the_gradient_norm_of_every_parameter_is_recorded(layout) -> None:
    """One step over rows of 1, 2, 4 and 33 labelled tokens, beside autograd's own gradients of the plain mean loss."""
    module, rows = model_and_rows([1, 2, 4, 33])
    plain_mean_loss(module, rows, range(4)).backward()
    wanted = {name.removeprefix("model."): p.grad.double().norm().item() for name, p in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    decayed = [p for p in module.parameters() if p.dim() > 1]
    others = [p for p in module.parameters() if p.dim() == 1]
    optimizer = torch.optim.SGD([{"params": others}, {"params": decayed}], lr=0.1)
    names, order = names_of(module, optimizer)
    recorded = []
    feed = Feed(rows, Capacity(None, 2), 0, 1, True, 0)
    plan = BatchPlan(len(rows), 4, seed=0, shuffle=False)
    train(
        layout, module, optimizer, feed.steps(plan, 0, 1), schedule=Schedule(0.1, 1, 0, "constant"), max_grad_norm=1e-3,
        seed=0, health=Health(WatchConfig(), print), loss_scale=LossScale(), say=print, beat=Heartbeat(),
        record=lambda result: None, record_gradients=lambda step, norms: recorded.append((step, norms.tolist())),
        wishes=Wishes, after_step=lambda step, wished: None,
    )  # fmt: skip
    ((step, norms),) = recorded
    assert step == 1
    assert [names[index] for index in order] == list(wanted)
    assert dict(zip(names, norms, strict=True)) == pytest.approx(wanted, rel=1e-5)
