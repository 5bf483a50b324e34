"""The report as JSON, its micro-batches, and what comes from the data layer."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
from transformers import AutoTokenizer

from tests.inspect.data import ACCOUNT, LayerAccount, collected, layer_source, part, report_of, row
from toolkit.config import DataConfig, RunConfig
from toolkit.data.examples import Text
from toolkit.data.plan import BatchPlan
from toolkit.data.tokens import TokenRows
from toolkit.inspect.batches import first_micro_batches
from toolkit.inspect.collect import Source, SourceAccount, collect
from toolkit.inspect.report import to_json

ROWS = [row("a" * (3 + i), "b" * (2 + i % 5)) for i in range(11)]


def test_json_is_the_report_in_ascii() -> None:
    train = part([row("hej 🎉", "你好"), *ROWS])
    report = report_of(collected(train, part(ROWS[:2], "eval"), sources=[Source("é", 0, 12, ACCOUNT)]))
    text = to_json(report)
    assert text.isascii()
    assert json.loads(text) == asdict(report)
    assert json.loads(text)["train"]["tokens"] == int(train.rows.lengths.sum())
    assert json.loads(text)["sources"][0]["account"]["dropped"] == {"nothing to learn": 2}


def test_the_first_steps_are_those_of_the_plan() -> None:
    config = RunConfig(seed=3)
    config.train.global_batch_size = 4
    config.train.max_tokens_per_micro_batch = 32
    train = part(ROWS)
    layout = first_micro_batches(config, train, hidden_size=8, devices=2, device_type="cpu")
    plan = BatchPlan(11, 4, 3)
    assert (layout.steps_per_epoch, layout.total_steps, layout.capacity) == (3, 3, 32)
    for step in (0, 1):
        mine = [b for b in layout.micro_batches if b.step == step + 1]
        places = sorted(r.place for b in mine for r in b.rows)
        assert places == sorted(train.place(int(i)) for i in plan.row_ids(step))
        assert len([b for b in mine if b.device == 0]) == len([b for b in mine if b.device == 1])
    for batch in layout.micro_batches:
        assert batch.tokens == sum(r.tokens for r in batch.rows) <= 32
        assert batch.supervised == sum(end - start for r in batch.rows for start, end in r.learnt)


def test_padding_is_shown_and_too_small_a_capacity_is_said() -> None:
    config = RunConfig()
    config.train.padding_free = False
    config.train.micro_batch_size = 4
    layout = first_micro_batches(config, part(ROWS), hidden_size=None, devices=1, device_type="cpu")
    assert layout.padded
    for batch in layout.micro_batches:
        assert len({r.tokens + r.padding for r in batch.rows}) == 1
    config.train.max_tokens_per_micro_batch = 5
    layout = first_micro_batches(config, part(ROWS), hidden_size=None, devices=1, device_type="cpu")
    assert "max_tokens_per_micro_batch" in str(layout.problem)
    assert layout.micro_batches == []


def test_what_the_data_layer_gives_is_taken_over(tiny_model) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    rows = TokenRows.build(ROWS)
    bare = collect(DataConfig(max_length=9), tokenizer, SimpleNamespace(train=rows, eval=None))  # type: ignore[arg-type]
    assert (bare.train.place(2), bare.train.example(2), bare.max_length) == ("row 3", None, 9)
    assert bare.sources == [Source("all training rows", 0, 11, None)]

    class WithOrigin(TokenRows):
        def origin(self, row: int) -> str:
            return f"f.jsonl:{row}"

    named = WithOrigin(rows.input_ids, rows.supervised, rows.offsets)
    sources = [layer_source("a", range(4), Text("A")), layer_source("b", range(4, 11), Text("B"))]
    full = SimpleNamespace(train=named, eval=None, sources=sources)
    data = collect(DataConfig(), tokenizer, full)  # type: ignore[arg-type]
    assert data.train.place(5) == "f.jsonl:5"
    assert [data.train.example(i) for i in (3, 4)] == [Text("A"), Text("B")]
    account = LayerAccount()
    assert data.sources[1].account == SourceAccount(5, 2, 1, 1, dict(account.dropped), 1)
    assert [(s.first, s.last) for s in data.sources] == [(0, 4), (4, 11)]
    assert data.special >= {tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert data.decode([np.array(tokenizer("is <|im_end|>")["input_ids"]).tolist()]) == ["is <|im_end|>"]
