"""Facts of an invented run, for tests of what is made of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from toolkit.card.facts import BaseFacts, CardFacts, Metric, SourceFacts
from toolkit.data.account import Account

ACCOUNT = Account(read=10, truncated=2, dropped=Counter({"empty": 1}), tokens=500, labels=120)
LOCAL = SourceFacts("rows", "my|rows.jsonl", account=ACCOUNT, rows=9, tokens=500, labels=120)
HUB = SourceFacts(
    "qa", "org/qa", hub_id="org/qa", split="test", revision="v2", account=ACCOUNT, rows=9, tokens=500, labels=120
)
FACTS = CardFacts(
    title="mine",
    recipe="sft",
    toolkit="toolkit",
    base=BaseFacts("org/base", "org/base", revision="v1", license={"license": "apache-2.0"}),
    parameters=1000,
    trained=1000,
    adapter=None,
    quantization=None,
    train=(LOCAL,),
    eval=(HUB,),
    held_out=False,
    streamed=None,
    training={"seed": "7"},
    settings={"data.columns": "{'prompt': 'a|b'}"},
    layout={"layout": "DDP"},
    versions={"python": "3.12"},
    metrics=(Metric("eval_loss", 2.0, 1.25), Metric("exact_match", 0.0, 0.5), Metric("eval_loss/qa", None, 1.0)),
    exact_rows=8,
    exact_tokens=16,
    resumed_after=None,
    chat=True,
    stops={"<|im_end|>": 2},
    command="python recipes/sft.py --config config.yaml",
    config_yaml="seed: 7\nnote: '```'\n",
)


def facts(**changes: object) -> CardFacts:
    """`FACTS` but for `changes`."""
    return replace(FACTS, **changes)
