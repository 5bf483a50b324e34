"""E11: stored reference figures are found again where nothing that they depend on has changed, and only there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.objectives.test_preference import rows
from toolkit.checksum import checksum, figures_name
from toolkit.layout import build_layout
from toolkit.reference import _store, _stored


@pytest.fixture
def model(tiny_model: Path):
    return AutoModelForCausalLM.from_pretrained(tiny_model)


def key(model, data: str = "data", *more: float) -> str:
    layout = build_layout()
    return figures_name(layout, model, checksum(layout, model), rows(), data, *more)


def test_the_smallest_change_of_one_weight_gives_another_name(model, tiny_model: Path) -> None:
    before = key(model)
    assert key(AutoModelForCausalLM.from_pretrained(tiny_model)) == before
    weight = model.model.layers[1].mlp.up_proj.weight.data
    weight[3, 5] = torch.nextafter(weight[3, 5], torch.tensor(9.0))
    assert key(model) != before


def test_weights_that_change_places_give_another_name(model) -> None:
    before = key(model)
    one, other = model.model.layers[0].mlp.up_proj.weight, model.model.layers[1].mlp.up_proj.weight
    one.data, other.data = other.data, one.data
    assert key(model) != before


def test_other_data_another_precision_and_another_adapter_give_another_name(model, build) -> None:
    assert len({key(model), key(model, "other data"), key(model, "data", 2), key(model, "data", 2, 1.5)}) == 4
    assert key(model.to(torch.bfloat16)) != key(model.float())
    names = {key(build(r=4, alpha=alpha, target_modules=["q_proj"])[0]) for alpha in (4, 8)}
    assert len(names) == 2


def test_what_is_stored_is_read_and_nothing_else(tmp_path: Path) -> None:
    values = np.array([[-1.5, -2.25], [0.0, -3.0], [-4.0, -5.0]], dtype=np.float32)
    file = tmp_path / "a.npy"
    assert _stored(file, (3, 2)) is None
    assert _store(file, values) is None
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]
    np.testing.assert_array_equal(_stored(file, (3, 2)), values)
    assert _stored(file, (4, 2)) is None, "of other rows"
    file.write_bytes(file.read_bytes()[:-5])
    assert _stored(file, (3, 2)) is None, "damaged"
    assert "No such file" in str(_store(tmp_path / "gone" / "a.npy", values)), "a cache that fails ends no run"
