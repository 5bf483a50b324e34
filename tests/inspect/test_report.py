"""The report as JSON, its micro-batches, and what comes from the data layer."""

from __future__ import annotations

import json
from dataclasses import asdict

from transformers import AutoTokenizer

from tests.inspect.data import ACCOUNT, collected, part, report_of, row
from toolkit.config import DataConfig, RunConfig
from toolkit.data.examples import Completion
from toolkit.data.plan import BatchPlan
from toolkit.data.prepare import prepare
from toolkit.inspect.batches import first_micro_batches
from toolkit.inspect.collect import Source, collect
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


def test_what_the_data_layer_gives_is_taken_over(tiny_model, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    chat = '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "%s"}]}\n'
    (tmp_path / "a.jsonl").write_text("".join(chat % ("x" * n) for n in (3, 4, 500, 5)))
    (tmp_path / "b.csv").write_text("prompt,completion\nq,yes\nr,\n")
    config = DataConfig(
        train=[str(tmp_path / "a.jsonl"), str(tmp_path / "b.csv")],
        on_bad_row="skip",
        max_bad_fraction=0.5,
        max_length=60,
    )
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    data = prepare(config, tokenizer, seed=0, prompts=0, note=lambda message: None)
    found = collect(config, tokenizer, data)
    assert [(s.name, s.first, s.last) for s in found.sources] == [("a", 0, 4), ("b", 4, 5)]
    first, second = (source.account for source in found.sources)
    assert (first.read, first.whole, first.truncated, first.answers_cut) == (4, 3, 1, 1)
    assert (second.read, second.whole, second.dropped) == (2, 1, {"empty completion": 1})
    assert [found.train.place(row) for row in (2, 4)] == [f"{tmp_path}/a.jsonl:3", f"{tmp_path}/b.csv:2"]
    assert found.train.example(3).messages[1]["content"] == "xxxxx"
    assert found.train.example(4) == Completion("q", "yes")
