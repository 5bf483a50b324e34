"""Log-probabilities in chunks against torch's own, values and gradients, on heads of every kind."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from toolkit.objectives import head as head_module
from toolkit.objectives import log_probs
from toolkit.objectives.head import OutputHead


@dataclass(frozen=True)
class Case:
    softcap: float | None = None
    scale: float = 1.0
    bias: bool = False


@pytest.mark.parametrize(
    "case", [Case(), Case(softcap=3.0), Case(scale=0.25, bias=True), Case(4.0, 1.5, True)], ids=str
)
@pytest.mark.parametrize("chunk", [2**27, 24 * 4 * 3])
def test_values_and_gradients_are_those_of_the_whole_logits(
    case: Case, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_probs, "_CHUNK_BYTES", chunk)
    monkeypatch.setattr(head_module, "_BLOCK_BYTES", 24 * 4 * 2)
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(13, 8), torch.randn(24, 8), torch.randn(24)
    targets, outer = torch.randint(0, 24, (13,)), torch.randn(13)
    mine = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
    found = log_probs.target_log_probs(
        mine[0], OutputHead(mine[1], mine[2] if case.bias else None, case.scale, case.softcap), targets
    )
    (found * outer).sum().backward()

    wide = [tensor.double().requires_grad_() for tensor in (hidden, weight, bias)]
    logits = case.scale * (wide[0] @ wide[1].T + (wide[2] if case.bias else 0.0))
    if case.softcap is not None:
        logits = case.softcap * torch.tanh(logits / case.softcap)
    expected = logits.log_softmax(-1)[torch.arange(13), targets]
    (expected * outer.double()).sum().backward()
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
    for one, other in zip(mine, wide, strict=True):
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad.float(), rtol=1e-4, atol=1e-5)


def test_no_position_gives_zero_gradients_not_none() -> None:
    hidden, weight = torch.randn(0, 8, requires_grad=True), torch.randn(24, 8, requires_grad=True)
    found = log_probs.target_log_probs(hidden, OutputHead(weight, None, 1.0, None), torch.zeros(0, dtype=torch.long))
    found.sum().backward()
    assert found.shape == (0,)
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def test_in_bf16_products_are_bf16_and_sums_are_fp32() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(50, 16, requires_grad=True), torch.randn(300, 16, requires_grad=True)
    targets = torch.randint(0, 300, (50,))
    with torch.autocast("cpu", torch.bfloat16):
        found = log_probs.target_log_probs(hidden, OutputHead(weight, None, 1.0, None), targets)
    found.sum().backward()
    expected = (hidden.detach() @ weight.detach().T).log_softmax(-1)[torch.arange(50), targets]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=0.1)
    assert weight.grad.dtype == torch.float32
