"""The quick way to the spans of a conversation gives what the long way gives, or nothing."""

from __future__ import annotations

import random

import pytest
from transformers import PreTrainedTokenizerFast

from tests.data.real_templates import folder, source, tokenizer_for
from tests.data.test_chat import TEMPLATES, chat_of, conversation, tokenizer_with
from toolkit.data import skeleton
from toolkit.data.constant_prompt import has_constant_prompt
from toolkit.data.examples import Chat
from toolkit.data.skeleton import quick_spans
from toolkit.data.spans import assistant_spans
from toolkit.data.template import render_or_explain, template_profile

OWN = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
REAL = sorted(path.stem for path in found.glob("*.jinja")) if (found := folder()) else []
# What a template may look for in a message, what may look like its own text, and what trimming changes.
# fmt: off
FRAGMENTS = [
    "ok", "a", "hello there", " ", "\n", "\n\n", "  x  ", "</think>", "<think>", "<think>\n", "<think>\n\n</think>\n\n",
    "/no_think", "/nothink", "<|im_end|>", "<|im_start|>assistant\n", "</s>", "[/INST]", "<end_of_turn>\n", "<|eot_id|>",
    "\uf000", "\uf0001\uf001", "\ue100", "\ue000x\ue001", "{{ x }}", "\n</think>\n\n", "<tool_response>", "user", "é😀",
    "<|return|>", "<|user|>", "<|end|>", "<|message|>", '"quoted"', "\\",
]
# fmt: on


def text_of(choose: random.Random) -> str:
    kind = choose.random()
    if kind < 0.1:
        return ""
    if kind < 0.35:
        return choose.choice(["ok", "answer one", "four"])
    return "".join(choose.choice(FRAGMENTS) for _ in range(choose.randint(1, 4)))


def random_chat(choose: random.Random) -> Chat:
    messages = [{"role": "system", "content": text_of(choose)}] if choose.random() < 0.25 else []
    if choose.random() < 0.1:
        messages.append({"role": "assistant", "content": text_of(choose)})
    for _ in range(choose.randint(1, 3)):
        messages += conversation(text_of(choose), text_of(choose))
    if choose.random() < 0.1:
        messages.append({"role": "user", "content": text_of(choose)})
    if choose.random() < 0.05:
        odd = choose.choice(["user", "assistant", "system", "tool"])
        messages.insert(choose.randrange(len(messages)), {"role": odd, "content": text_of(choose)})
    if choose.random() < 0.2:  # all alike
        alike = choose.choice(["ok", text_of(choose)])
        messages = [{**message, "content": alike} for message in messages]
    learnt = [m["role"] == "assistant" and choose.random() < 0.8 for m in messages]
    return Chat(messages, None, tuple(learnt)) if any(learnt) else chat_of(messages)


def agree(tokenizer: PreTrainedTokenizerFast, count: int, seed: int) -> int:
    """How many of `count` random conversations went the quick way; all of them as the long way has it."""
    choose, quick = random.Random(seed), 0
    for _ in range(count):
        chat = random_chat(choose)
        found = quick_spans(chat, tokenizer)
        if found is not None:
            quick += 1
            assert found == assistant_spans(chat, tokenizer), chat
    return quick


@pytest.mark.parametrize("name", OWN)
def test_own_templates(name: str) -> None:
    tokenizer = tokenizer_with(name)
    quick = agree(tokenizer, 150, seed=len(name))
    assert (quick > 30) == (name not in ("headers_marked", "summary_first"))


@pytest.mark.skipif(not REAL, reason="the package trl, which ships the templates, is not installed")
@pytest.mark.parametrize("name", REAL)
def test_real_templates(name: str) -> None:
    tokenizer = tokenizer_for(source(name))
    quick = agree(tokenizer, 60, seed=len(name))
    assert (quick > 5) != template_profile(tokenizer).marked


@pytest.mark.skipif(not REAL, reason="the package trl, which ships the templates, is not installed")
@pytest.mark.parametrize("name", REAL)
def test_ordinary_conversations_go_the_quick_way(name: str) -> None:
    tokenizer = tokenizer_for(source(name))
    chat = chat_of(conversation("What is it?", "It is\n\nthis.", "And that?", "Also <b>this</b>."))
    if not template_profile(tokenizer).marked:
        assert quick_spans(chat, tokenizer) == assistant_spans(chat, tokenizer)


def test_prompt_that_depends_on_a_message() -> None:
    """The conversation looks the same, but what the prompt supplies, and so what is left to learn, does not."""
    template = "{% for m in messages %}<|start|>{{ m.role }}<|message|>"
    template += "{{ '<think></think>' if m.role == 'assistant' }}{{ m.content }}<|end|>{% endfor %}"
    template += "{% if add_generation_prompt %}<|start|>assistant<|message|>"
    template += "{{ '<think></think>' if 'quick' in messages[-1].content }}{% endif %}"
    tokenizer = tokenizer_with(template)
    assert not has_constant_prompt(template)
    slow, quick = chat_of(conversation("q", "a")), chat_of(conversation("quick q", "a"))
    for chat, expected in ((slow, "<think></think>a<|end|>"), (quick, "a<|end|>"), (slow, "<think></think>a<|end|>")):
        turns = quick_spans(chat, tokenizer) or assistant_spans(chat, tokenizer)
        assert [turns.text[start:end] for start, end in turns.spans] == [expected]
    assert quick_spans(slow, tokenizer) is not None
    assert quick_spans(quick, tokenizer) is None


def test_answer_that_begins_with_what_the_prompt_ends_in() -> None:
    template = (TEMPLATES / "chatml.jinja").read_text(encoding="utf-8")
    tokenizer = tokenizer_with(template.replace("assistant\\n'", "assistant\\n<think>\\n'"))
    assert quick_spans(chat_of(conversation("q", "a")), tokenizer) is not None
    assert quick_spans(chat_of(conversation("q", "<think>\na")), tokenizer) is None


def test_content_that_changes_the_rendering_goes_the_long_way() -> None:
    template = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content | replace('x', 'y') }}<|end|>"
    tokenizer = tokenizer_with(template + "{% endfor %}")
    assert quick_spans(chat_of(conversation("q", "a")), tokenizer) is not None
    assert quick_spans(chat_of(conversation("x", "a")), tokenizer) is None


def test_more_than_role_and_content_goes_the_long_way() -> None:
    tokenizer = tokenizer_with("chatml")
    messages = conversation("q", "a")
    messages[1]["reasoning_content"] = "r"
    assert quick_spans(chat_of(messages), tokenizer) is None
    assert quick_spans(Chat(conversation("q", "a"), None, None), tokenizer) is None
    assert quick_spans(chat_of(conversation("q", " ")), tokenizer) is None


def test_tools_are_part_of_what_is_fixed() -> None:
    template = "{{ tools[0].name if tools }}{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}"
    tokenizer = tokenizer_with(template)
    for name in ("one", "another"):
        chat = chat_of(conversation("q", "a"), tools=[{"name": name}])
        found = quick_spans(chat, tokenizer)
        assert found == assistant_spans(chat, tokenizer)
        assert found is not None
        assert found.text.startswith(name)


def test_a_new_template_is_noticed() -> None:
    tokenizer, chat = tokenizer_with("chatml"), chat_of(conversation("q", "a"))
    assert quick_spans(chat, tokenizer) is not None
    tokenizer.chat_template = (TEMPLATES / "turns.jinja").read_text(encoding="utf-8")
    assert quick_spans(chat, tokenizer) == assistant_spans(chat, tokenizer)


def test_what_is_kept_is_bounded_and_few_renderings_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_with("chatml")
    monkeypatch.setattr(skeleton, "_KEPT", 3)
    for turns in range(1, 9):
        assert quick_spans(chat_of(conversation(*"ab" * turns)), tokenizer) is not None
    assert len(skeleton._CACHE[tokenizer]) == 3
    calls = []
    render = skeleton.render
    monkeypatch.setattr(skeleton, "render", lambda *given, **more: calls.append(1) or render(*given, **more))
    for _ in range(10):
        assert quick_spans(chat_of(conversation(*"ab" * 8)), tokenizer) is not None
    assert len(calls) == 10


def test_next_message_that_begins_with_an_end_token() -> None:
    """B02: two answers in a row that the template joins: the second one's text does not close the first."""
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}<|start|>{{ m.content }}<|end|>{% else %}{{ m.content }}"
    )
    template += "{{ '<|end|>' if loop.last or loop.nextitem.role == 'user' }}{% endif %}{% endfor %}"
    tokenizer = tokenizer_with(template)
    answers = [{"role": "assistant", "content": text} for text in ("one", "</s>two")]
    first = Chat([*conversation("q"), *answers], None, (False, True, False))
    turns = assistant_spans(first, tokenizer)
    assert [turns.text[start:end] for start, end in turns.spans] == ["one"]
    assert turns.turn_end_missing


@pytest.mark.parametrize(
    ("tail", "constant"),
    [
        ("{% if add_generation_prompt %}<|start|>{{ 'assistant' }}{% endif %}", True),
        ("{% if add_generation_prompt %}x{% if enable_thinking is defined %}y{% endif %}{% else %}z{% endif %}", True),
        ("{% set bos_token = messages[0].content %}{% if add_generation_prompt %}{{ bos_token }}{% endif %}", False),
        ("{% if add_generation_prompt and messages %}x{% endif %}", False),
        ("{% if add_generation_prompt %}{{ messages[-1].role }}{% endif %}", False),
        ("{{ 'x' if add_generation_prompt }}", False),
        ("{% set add_generation_prompt = messages %}{% if add_generation_prompt %}x{% endif %}", False),
        ("{% for m in messages %}{% if add_generation_prompt %}x{% endif %}{% endfor %}", False),
        ("{% if add_generation_prompt %}{% for m in messages %}x{% endfor %}{% endif %}", False),
        ("{% newer %}", False),
    ],
)
def test_constant_prompts(tail: str, constant: bool) -> None:
    assert has_constant_prompt("{% for m in messages %}{{ m.content }}{% endfor %}" + tail) == constant


def test_prompt_is_what_the_source_says() -> None:
    """The reading of the source against renderings, for every template at hand."""
    for name in [*OWN, *REAL]:
        tokenizer = tokenizer_with(name) if name in OWN else tokenizer_for(source(name))
        if not has_constant_prompt(tokenizer.chat_template):
            continue
        prompts = set()
        for question in ("q", "/no_think", "<think>x</think>", "<|im_end|>"):
            asked = conversation(question)
            plain, prompted = (render_or_explain(tokenizer, asked, None, "", prompt=p) for p in (False, True))
            shared = prompted[len(plain) :] if prompted.startswith(plain) else prompted[-len("Assistant:") :]
            prompts.add(shared)
        assert len(prompts) == 1, name
