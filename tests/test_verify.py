"""What changed and what did not, and files that hold what was written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from toolkit.errors import UserError
from toolkit.layout import build_layout
from toolkit.verify import Changes, check_written


def parts() -> torch.nn.Module:
    module = torch.nn.Module()
    module.trained, module.also = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
    module.frozen = torch.nn.Parameter(
        torch.tensor([1.0, float("nan"), 3.0], dtype=torch.bfloat16), requires_grad=False
    )
    module.bits = torch.nn.Parameter(torch.arange(5, dtype=torch.uint8), requires_grad=False)
    return module


@pytest.mark.parametrize(
    ("touched", "words"),
    [
        (["trained", "also"], "verified: all 2 trained tensors changed, all 2 others did not"),
        (["trained"], "warning: 1 of 2 trained tensors changed since the start; unchanged: also"),
        ([], "warning: none of 2 trained tensors changed"),
        (["trained", "also", "frozen"], "warning: 1 frozen tensors are not as they were loaded, the first: frozen"),
        (["trained", "also", "bits"], "warning: 1 frozen tensors are not as they were loaded, the first: bits"),
    ],
)
def test_changes_are_told(touched: list[str], words: str) -> None:
    module, said = parts(), []
    changes = Changes(module)
    with torch.no_grad():
        for name in touched:
            getattr(module, name)[0] += 1
    changes.tell(build_layout(), module, said.append)
    assert any(words in line for line in said), said


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"a": (2, 3)}, "lacks b"),
        ({"a": (2, 3), "b": (5,)}, "has, in another shape, b"),
        ({"a": (2, 3), "b": (4,), "c": (1,)}, "has, besides, c"),
        ({"a": (2, 3), "b": (4, 0)}, "another shape, b"),
    ],
)
def test_a_file_that_does_not_hold_what_was_written(tmp_path: Path, stored: dict, words: str) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({name: torch.zeros(shape) for name, shape in stored.items()}, file)
    expected = {"a": torch.Size((2, 3)), "b": torch.Size((4,))}
    with pytest.raises(UserError, match=words):
        check_written(file, expected)
    save_file({name: torch.zeros(shape) for name, shape in expected.items()}, file)
    check_written(file, expected)
