"""A teacher that cannot teach is refused in one line, in the teacher's name."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from toolkit.config import ModelConfig
from toolkit.errors import UserError
from toolkit.teacher import check_teacher, check_vocabularies


def test_a_teacher_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^teacher\.name_or_path is not set"):
        check_teacher(ModelConfig())
    with pytest.raises(UserError, match=r"^teacher\.name_or_path: .*does not exist"):
        check_teacher(ModelConfig(name_or_path=str(tmp_path / "gone")))


def test_another_vocabulary(tiny_model: Path) -> None:
    mine, theirs = (AutoTokenizer.from_pretrained(tiny_model) for _ in range(2))
    check_vocabularies(mine, theirs)
    size = len(theirs)
    theirs.add_tokens(["<new>"])
    with pytest.raises(
        UserError, match=rf"{size + 1:,} and {size:,} tokens; the first difference: '<new>' is {size} and None"
    ):
        check_vocabularies(mine, theirs)
