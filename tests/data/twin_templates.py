"""Where the templates of `trl` with `{% generation %}` marks mark other text than is learnt of their originals, and why."""
# ruff: noqa: RUF001 - some control tokens are written with full-width bars

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from tests.data.real_templates import CASES, source, tokenizer_for

REASONS = {
    "after": "The twin also marks what follows the token that ends the turn (a line break, for phi3 also `</s>`). A model "
    "has stopped by then, so it is not learnt here.",
    "prompt": "The twin also marks what the generation prompt supplies (such as `<|start|>assistant`, the line break "
    "after a header, or an opening `<think>`). The model never has to write it, so it is not learnt here.",
    "history": "The twin writes thinking into turns where the original leaves it out. What is learnt here is what the "
    "original renders, which is what the model sees at inference.",
    "calls": "The template does not render tool calls. The twin marks the empty answer that remains; here the row is "
    "refused.",
    "stop": "After a call the original writes `<|tool_response>`, at which generation stops; the twin leaves it out of its "
    "marks, here it is learnt. After a tool's result the original's generation prompt is empty, so that `<|turn>model` is "
    "the model's to write; it is learnt here, and not marked in the twin.",
}

_OPENED = {"<think>": "prompt", "<think>\n": "prompt"}
_SHOWN = {"<think>\n\n</think>\n\n": "history", "<think>\nr one\n</think>\n\n": "history"}
_STARTED = {"<|start|>assistant": "prompt"}
_NAMED = {
    "<｜Assistant｜>": "prompt",
    "<｜tool▁outputs▁end｜>": "prompt",
}
_NAMED_AND_SHOWN = {
    **_NAMED,
    "<｜Assistant｜><think>\nr one\n</think>": "history",
    "<｜Assistant｜><think>\nr two\n</think>": "history",
}
# What a twin marks before the text that is learnt, and the reason for each.
BEFORE: dict[str, dict[str, str]] = {
    "deepseek_r1_distill": _NAMED_AND_SHOWN,
    "deepseekv3": _NAMED,
    "gptoss": _STARTED,
    "muse_glimmer": _STARTED,
    "nemotron_3_5_lightning": _OPENED,
    "nemotron_3_nano": _OPENED,
    "nemotron_3_super": _OPENED,
    "nemotron_3_ultra": _OPENED,
    "qwen2_5": {"\n": "prompt"},
    "qwen3": _SHOWN,
    "qwen3_5_nothink": {**_OPENED, **_SHOWN, "<think>\n\n</think>\n\n": "prompt"},
    "qwen3_5_think": {**_OPENED, **_SHOWN},
    "qwen3_6": {**_OPENED, **_SHOWN},
    "qwen3_8": _OPENED,
}
# (twin, learnt) where neither is the end of the other.
_OTHER = {
    ("<tool_call|>", "<tool_call|><|tool_response>"): "stop",
    ("a two<turn|>", "<|turn>model\na two<turn|>"): "stop",
}
_AFTER = ("\n</s>", "\n")
PARTS = ("idefics3", "llava_next", "smolvlm")


def marks(name: str, case: str) -> list[str]:
    """The texts that transformers finds marked under the template `name`; raises whatever the template raises."""
    messages, tools = CASES[case]
    if name.removesuffix("_training") in PARTS:
        messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
    tokenizer = tokenizer_for(source(name))
    encoded = tokenizer.apply_chat_template(messages, tools=tools, return_assistant_tokens_mask=True, return_dict=True)
    return runs(encoded["input_ids"], [bool(flag) for flag in encoded["assistant_masks"]], tokenizer)


def runs(ids: list[int], flags: list[bool], tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The texts of consecutive flagged tokens."""
    found: list[list[int]] = [[]]
    for number, flag in zip(ids, flags, strict=True):
        if flag:
            found[-1].append(number)
        else:
            found.append([])
    return [tokenizer.decode(run) for run in found if run]


def without_after(text: str) -> str:
    """A marked text without what follows its end token."""
    return next((text.removesuffix(ending) for ending in _AFTER if text.endswith(ending)), text)


def differences(name: str, learnt: list[str] | None, marked: list[str]) -> set[str]:
    """The reasons why the two differ; KeyError or AssertionError where there is none."""
    if learnt is None:
        return {"calls"}
    assert len(learnt) == len(marked), (learnt, marked)
    reasons = set()
    for ours, twin in zip(learnt, marked, strict=True):
        closed = without_after(twin)
        if closed != twin:
            reasons.add("after")
        if closed == ours:
            continue
        if closed.endswith(ours):
            reasons.add(BEFORE[name][closed.removesuffix(ours)])
            continue
        found = [reason for (a, b), reason in _OTHER.items() if closed.endswith(a) and ours.endswith(b)]
        assert found, (ours, twin)
        reasons.add(found[0])
    return reasons
