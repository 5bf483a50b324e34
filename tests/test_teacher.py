"""A teacher that cannot teach is refused in one line, in the teacher's name."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from toolkit.config import ModelConfig
from toolkit.data.teaching import Teaching
from toolkit.data.tokens import TokenRows
from toolkit.errors import UserError
from toolkit.layout import build_layout
from toolkit.steps import Capacity, Feed
from toolkit.teacher import check_teacher, check_vocabularies, with_teaching


def test_a_teacher_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^teacher\.name_or_path is not set"):
        check_teacher(ModelConfig())
    with pytest.raises(UserError, match=r"^teacher\.name_or_path: .*does not exist"):
        check_teacher(ModelConfig(name_or_path=str(tmp_path / "gone")))
    with pytest.raises(UserError, match=r"^teacher\.name_or_path: .*/model\.dtype: path"):
        check_teacher(ModelConfig(name_or_path=str(tmp_path / "model.dtype")))  # a path keeps its name


def test_another_vocabulary(tiny_model: Path) -> None:
    mine, theirs = (AutoTokenizer.from_pretrained(tiny_model) for _ in range(2))
    check_vocabularies(mine, theirs)
    size = len(theirs)
    theirs.add_tokens(["<new>"])
    with pytest.raises(
        UserError, match=rf"{size + 1:,} and {size:,} tokens; the first difference: '<new>' is {size} and None"
    ):
        check_vocabularies(mine, theirs)


ROWS = [([5, 9, 60, 33, 7], 3), ([44, 45, 46], 1), ([12, 14, 90, 91, 92, 93], 4)]  # ids, first that is learnt


@pytest.fixture
def taught(tiny_model: Path, tmp_path: Path):
    """(call of `with_teaching` on a fresh teacher, lines said, the teacher)."""
    rows = TokenRows.build([(ids, [-100] * first + ids[first:]) for ids, first in ROWS])
    feed = Feed(rows, Capacity(None, 2), 0, 1, False, 0)

    def make():
        said: list[str] = []
        data = SimpleNamespace(cache_dir=str(tmp_path))
        config = SimpleNamespace(data=data)
        run = SimpleNamespace(layout=build_layout(), config=config, beat=lambda *_: None, say=said.append)
        teacher = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
        call = partial(with_teaching, run, teacher, torch.nn.Module(), {"training": feed}, data="d", temperature=1.6)
        return call, said, teacher

    return make


def test_the_likeliest_tokens_are_asked_for_once_and_the_teacher_is_let_go_of(taught, tiny_model: Path) -> None:
    call, said, teacher = taught()
    found = call(count=4)["training"].rows.teaching
    assert said == ["teacher: the 4 likeliest tokens of 6 labelled training tokens: computed"]
    assert all(parameter.is_meta for parameter in teacher.parameters())
    plain = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    for row, (ids, first) in enumerate(ROWS):
        with torch.no_grad():
            log_probs = (plain(torch.tensor([ids])).logits[0, first - 1 : -1] / 1.6).log_softmax(-1).topk(4)
        tokens, values = found.of(np.array([row]))
        torch.testing.assert_close(tokens, log_probs.indices)
        torch.testing.assert_close(values, log_probs.values, rtol=1e-5, atol=1e-5)
    again, said, _ = taught()
    again(count=4)
    assert said[0].endswith("computed before, taken from the cache")
    other, said, _ = taught()
    other(count=5)
    assert said[0].endswith(": computed")


def test_more_tokens_than_there_are_and_a_full_disk_are_said(taught, tmp_path: Path, monkeypatch) -> None:
    call, *_ = taught()
    with pytest.raises(UserError, match=r"objective\.top_k: 9,999 tokens of a vocabulary of"):
        call(count=9999)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Teaching, "write", staticmethod(full))
    with pytest.raises(UserError, match=r"No space left on device; set data\.cache_dir"):
        call(count=4)
    assert not list((tmp_path / "teacher").iterdir()), "nothing half written stays"
