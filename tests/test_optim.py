"""The learning rate of every update, the batch-size rule and what decays."""

from __future__ import annotations

import math

import pytest
import torch

from toolkit.config import TrainConfig
from toolkit.errors import UserError
from toolkit.optim import Schedule, build_optimizer, build_schedule, scaled_learning_rate, set_learning_rate


def schedule(total: int, **settings) -> tuple[Schedule, list[str]]:
    said: list[str] = []
    return build_schedule(TrainConfig(**{"learning_rate": 1e-3, **settings}), total, said.append), said


def test_linear_decay_of_forty_updates() -> None:
    rate, said = schedule(40)
    assert [rate(k) for k in range(40)] == pytest.approx([1e-3 * (1 - k / 40) for k in range(40)], rel=1e-12)
    assert rate(20) == pytest.approx(5e-4)
    assert said == []


def test_warm_up_then_linear_by_hand() -> None:
    rate, _ = schedule(6, warmup_steps=2)
    assert [rate(k) for k in range(6)] == pytest.approx([5e-4, 1e-3, 1e-3, 7.5e-4, 5e-4, 2.5e-4])


def test_cosine_and_constant_by_hand() -> None:
    rate, _ = schedule(6, warmup_steps=2, schedule="cosine")
    half = math.sqrt(0.5)
    expected = [0.5, 1.0, 1.0, (1 + half) / 2, 0.5, (1 - half) / 2]
    assert [rate(k) for k in range(6)] == pytest.approx([1e-3 * e for e in expected])
    rate, _ = schedule(4, warmup_steps=2, schedule="constant")
    assert [rate(k) for k in range(4)] == pytest.approx([5e-4, 1e-3, 1e-3, 1e-3])


@pytest.mark.parametrize(
    ("total", "settings", "warmup"),
    [
        (6, {"warmup_ratio": 0.03}, 1),
        (1, {"warmup_ratio": 0.03}, 1),
        (10, {"warmup_ratio": 0.1}, 1),
        (30, {"warmup_ratio": 0.1}, 3),
        (10, {"warmup_ratio": 0.11}, 2),
        (6, {}, 0),
        (6, {"warmup_steps": 0}, 0),
    ],
)
def test_a_share_of_the_run_is_rounded_up(total: int, settings: dict, warmup: int) -> None:
    rate, said = schedule(total, **settings)
    assert rate.warmup_steps == warmup
    assert max(rate(k) for k in range(total)) == 1e-3
    assert said == []


def test_warm_up_longer_than_the_run_is_said() -> None:
    rate, said = schedule(6, warmup_steps=10)
    assert rate(5) == pytest.approx(6e-4)
    assert len(said) == 1
    assert "never reached" in said[0]


@pytest.mark.parametrize("settings", [{"warmup_ratio": 1.5}, {"warmup_ratio": 0.1, "warmup_steps": 3}])
def test_impossible_warm_up_is_refused(settings: dict) -> None:
    with pytest.raises(UserError, match=r"train\.warmup_ratio"):
        schedule(6, **settings)


@pytest.mark.parametrize("shape", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("total", [1, 2, 7])
@pytest.mark.parametrize("warmup", [0, 1, 7, 9])
def test_no_update_has_rate_zero(shape: str, total: int, warmup: int) -> None:
    rate, _ = schedule(total, warmup_steps=warmup, schedule=shape)
    assert all(0 < rate(k) <= 1e-3 for k in range(total))


def test_rate_scales_with_the_batch() -> None:
    base = {"learning_rate": 1e-3, "global_batch_size": 64, "learning_rate_base_batch_size": 16}
    assert scaled_learning_rate(TrainConfig(**base, learning_rate_scaling="linear")) == pytest.approx(4e-3)
    assert scaled_learning_rate(TrainConfig(**base, learning_rate_scaling="sqrt")) == pytest.approx(2e-3)
    assert scaled_learning_rate(TrainConfig(learning_rate=1e-3, global_batch_size=64)) == 1e-3
    rate, _ = schedule(10, global_batch_size=64, learning_rate_base_batch_size=16, learning_rate_scaling="sqrt")
    assert rate.peak == pytest.approx(2e-3)


@pytest.mark.parametrize(
    "settings",
    [{"learning_rate_scaling": "linear"}, {"learning_rate_scaling": "sqrt"}, {"learning_rate_base_batch_size": 16}],
)
def test_scaling_needs_both_keys(settings: dict) -> None:
    with pytest.raises(UserError, match=r"train\.learning_rate_base_batch_size"):
        scaled_learning_rate(TrainConfig(**settings))


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))


def test_matrices_decay_and_norms_and_biases_never() -> None:
    module = network()
    module[0].weight.requires_grad_(False)
    matrices, vectors = build_optimizer(module, TrainConfig(weight_decay=0.1)).param_groups
    assert [id(p) for p in matrices["params"]] == [id(module[1].weight)]
    assert {id(p) for p in vectors["params"]} == {id(module[1].bias), id(module[2].weight), id(module[2].bias)}
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)


def test_adamw_is_fused_and_has_the_recipes_settings() -> None:
    settings = {"learning_rate": 3e-4, "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6}
    optimizer = build_optimizer(network(), TrainConfig(**settings))
    assert isinstance(optimizer, torch.optim.AdamW)
    for group in optimizer.param_groups:
        assert group["fused"] is True
        assert (group["lr"], group["betas"], group["eps"]) == (3e-4, (0.8, 0.95), 1e-6)


def test_sgd_steps_by_rate_times_gradient_and_the_rate_can_be_set() -> None:
    module = torch.nn.Linear(2, 1, bias=False)
    optimizer = build_optimizer(module, TrainConfig(optimizer="sgd", learning_rate=1.0))
    set_learning_rate(optimizer, 0.5)
    before = module.weight.detach().clone()
    module.weight.grad = torch.tensor([[2.0, -4.0]])
    optimizer.step()
    assert torch.allclose(module.weight, before - torch.tensor([[1.0, -2.0]]))
