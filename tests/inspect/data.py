"""Small data whose figures can be counted by hand: one letter is one token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

from toolkit.config import RunConfig
from toolkit.data.examples import Example
from toolkit.data.tokens import TokenRows
from toolkit.inspect.collect import Collected, Part, Source, SourceAccount
from toolkit.inspect.report import Head, Report, build_report

END = 1  # the control token <end>, shown as one letter by `letters`


def letters(rows: list[list[int]]) -> list[str]:
    """Token id = code point; END is a control token."""
    return ["".join("<end>" if i == END else chr(i) for i in row) for row in rows]


def row(prompt: str, answer: str, *, end: bool = True) -> tuple[list[int], list[int]]:
    """(ids, labels): the answer and the end token are supervised."""
    learnt = [ord(c) for c in answer] + ([END] if end else [])
    return [ord(c) for c in prompt] + learnt, [-100] * len(prompt) + learnt


def part(rows: list[tuple[list[int], list[int]]], name: str = "train", examples: list[Example] | None = None) -> Part:
    """Places are NAME.jsonl:1, 2, ..."""
    return Part(
        name,
        TokenRows.build(rows),
        lambda i: f"/data/{name}.jsonl:{i + 1}",
        lambda i: examples[i] if examples else None,
    )


def collected(
    train: Part,
    held_out: Part | None = None,
    *,
    max_length: int = 64,
    sources: list[Source] | None = None,
    decode: Callable[[list[list[int]]], list[str]] = letters,
) -> Collected:
    sources = sources or [Source("train.jsonl", 0, len(train.rows), None)]
    return Collected(train, held_out, sources, frozenset({END}), decode, max_length)


def report_of(data: Collected, *, rows: int = 3, devices: int = 1) -> Report:
    config = RunConfig()
    config.train.global_batch_size = 4
    config.train.max_tokens_per_micro_batch = 256
    head = Head("my.yaml", "models/tiny", "Fast", 256, "the model's own", "train.jsonl", "", ["a note"])
    return build_report(config, head, data, rows=rows, hidden_size=32, devices=devices, device_type="cpu")


ACCOUNT = SourceAccount(read=10, whole=5, truncated=2, split=1, dropped={"nothing to learn": 2}, answers_cut=1)


@dataclass
class LayerAccount:
    """As the data layer keeps it."""

    read: int = 5
    truncated: int = 1
    split: int = 1
    answers_cut: int = 1
    dropped: Counter[str] = field(default_factory=lambda: Counter({"too long": 1}))


def layer_source(name: str, rows: range, example: Example) -> SimpleNamespace:
    """A source as the data layer gives it."""
    return SimpleNamespace(name=name, rows=rows, account=LayerAccount(), example=lambda row: example)
