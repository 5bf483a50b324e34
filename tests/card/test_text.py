"""What a card says of given facts, and that it says nothing else."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from tests.card.made import FACTS, HUB, LOCAL, facts
from toolkit.card.facts import AdapterFacts, BaseFacts, Metric
from toolkit.card.metadata import metadata
from toolkit.card.snippet import code_of
from toolkit.card.text import card_text, code
from toolkit.card.write import save_card

LORA = AdapterFacts("lora", {"r": 8, "lora_alpha": 16}, ("q_proj", "v_proj"), ("`lm_head`, trained whole",))
LOCAL_BASE = BaseFacts("./base")


def saved(tmp_path: Path, **changes) -> tuple[dict, str]:
    """Metadata and text of a card, as they are read back from its file."""
    save_card(facts(**changes), tmp_path / "README.md")
    assert [file.name for file in tmp_path.iterdir()] == ["README.md"]
    card = ModelCard.load(tmp_path / "README.md")
    assert ModelCard(str(card)).data.to_dict() == card.data.to_dict() == metadata(facts(**changes)).to_dict()
    return card.data.to_dict(), card.text


def test_metadata_of_a_full_model(tmp_path: Path) -> None:
    found, _ = saved(tmp_path)
    assert found == {
        "base_model": "org/base",
        "base_model_relation": "finetune",
        "library_name": "transformers",
        "license": "apache-2.0",
        "pipeline_tag": "text-generation",
        "tags": ["toolkit", "sft"],
        "model-index": [
            {
                "name": "mine",
                "results": [
                    {
                        "task": {"type": "text-generation"},
                        "dataset": {"name": "org/qa, 9 rows", "type": "org/qa", "split": "test", "revision": "v2"},
                        "metrics": [
                            {"type": "loss", "value": 1.25, "name": "Loss"},
                            {"type": "exact_match", "value": 0.5, "name": "Exact match"},
                        ],
                    }
                ],
            }
        ],
    }


def test_metadata_of_an_adapter(tmp_path: Path) -> None:
    found, text = saved(tmp_path, adapter=LORA, trained=50, train=(HUB, LOCAL, HUB), eval=(), metrics=())
    assert found["library_name"] == "peft"
    assert found["base_model_relation"] == "adapter"
    assert found["tags"] == ["toolkit", "sft", "lora"]
    assert found["datasets"] == ["org/qa"]
    assert "model-index" not in found
    assert "r 8, lora_alpha 16; on `q_proj`, `v_proj`; beside it `lm_head`, trained whole." in text
    assert "Trained parameters: 50 of 1,000." in text
    assert "no evaluation rows" in text


@pytest.mark.parametrize("base", [LOCAL_BASE, BaseFacts("org/base", "org/base", random=True)])
def test_what_the_hub_would_take_for_something_else_is_left_out(base: BaseFacts, tmp_path: Path) -> None:
    found, text = saved(tmp_path, base=base, eval=(LOCAL,))
    assert set(found) == {"library_name", "pipeline_tag", "tags"}
    assert "No license is stated" in text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_figure_that_is_none_is_no_result(value: float | None, tmp_path: Path) -> None:
    found, _ = saved(tmp_path, metrics=(Metric("eval_loss", 2.0, value),))
    assert "model-index" not in found


def test_two_evaluation_sources_share_no_result(tmp_path: Path) -> None:
    assert "model-index" not in saved(tmp_path, eval=(HUB, LOCAL))[0]


def test_the_text_has_the_facts() -> None:
    text = card_text(FACTS)
    assert "[org/base](https://huggingface.co/org/base), revision `v1`" in text
    assert "| loss | 2.0000 | 1.2500 |" in text
    assert "| loss/qa |  | 1.0000 |" in text
    # 10 read = 7 whole + 2 truncated + 0 split + 1 dropped
    assert r"| `my\|rows.jsonl` | 10 | 7 | 2 | 0 | 1 | 9 | 500 | 120 |" in text
    assert "datasets/org/qa) (split `test`, revision `v2`) | 10 | 7 |" in text
    assert r"| `data.columns` | `{'prompt': 'a\|b'}` |" in text
    assert "states its license as `apache-2.0`" in text
    assert "the share of 8 of these rows" in text
    assert "stops at `<|im_end|>` (2)" in text
    assert "resumed" not in text
    assert "````yaml\nseed: 7\nnote: '```'\n````" in text  # what is in it cannot end it


def test_a_resumed_run_says_so() -> None:
    assert "training went on after step 1,200" in card_text(facts(resumed_after=1200))


def test_an_uneven_mixture_says_what_an_epoch_has() -> None:
    text = card_text(facts(train=(replace(LOCAL, rows_per_epoch=18), replace(HUB, rows_per_epoch=4))))
    assert "| 9 | 500 | 120 | 18 |" in text
    assert "| rows in an epoch |" in text


def test_a_stream_says_what_was_read() -> None:
    streamed = replace(LOCAL, account=None, rows=0, tokens=0, labels=0)
    text = card_text(facts(train=(streamed,), streamed=LOCAL.account, resumed_after=5))
    assert (
        "read since step 5: 10 rows = 7 whole + 2 truncated + 1 dropped (empty: 1); 500 tokens, 120 labelled." in text
    )


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("adapter", [None, LORA])
@pytest.mark.parametrize("gguf", [None, "a'b.gguf"])
def test_every_snippet_is_python(chat: bool, adapter: AdapterFacts | None, gguf: str | None) -> None:
    made = facts(chat=chat, adapter=adapter, base=replace(LOCAL_BASE, gguf_file=gguf))
    ast.parse(code_of(made))
    assert ("PeftModel.from_pretrained" in code_of(made)) == (adapter is not None and gguf is not None)
    assert ("AutoPeftModelForCausalLM" in code_of(made)) == (adapter is not None and gguf is None)
    assert ("apply_chat_template" in code_of(made)) == chat


def test_backticks_in_code() -> None:
    assert code("a`b``c") == "``` a`b``c ```"
    assert code("plain") == "`plain`"


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ("eval_perplexity", "per labelled token (120 of them)"),
        ("eval_rewards/margins", "means over pairs of answers"),
        ("eval_kl", "mean over the judged answers"),
        ("eval_divergence", "the share of them where the model ranks first what its teacher does"),
        ("eval_something", "means over what the recipe's objective counts"),
    ],
)
def test_figures_are_explained_as_what_they_are(shown: str, words: str) -> None:
    text = card_text(replace(FACTS, metrics=(Metric("eval_loss", 2.0, 1.0), Metric(shown, 1.0, 0.5))))
    assert words in text
