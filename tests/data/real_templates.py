"""What is learnt of a few conversations under the chat templates that the package `trl` ships.

The expected texts follow from the conversation and from what each template writes around an answer, not from our code.
"""
# ruff: noqa: RUF001 - some control tokens are written with full-width bars

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CALL = {"type": "function", "id": "call00001", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "A city."}},
    "required": ["city"],
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather now.", "parameters": PARAMETERS},
}


def user(content: str) -> dict:
    return {"role": "user", "content": content}


def assistant(content: str, **more: object) -> dict:
    return {"role": "assistant", "content": content, **more}


CASES: dict[str, tuple[list[dict], list | None]] = {
    "single": ([user("q one"), assistant("a one")], None),
    "multi": ([user("q one"), assistant("a one"), user("q two"), assistant("a two")], None),
    "system": ([{"role": "system", "content": "be brief"}, user("q one"), assistant("a one")], None),
    "reasoning": (
        [
            user("q one"),
            assistant("a one", reasoning_content="r one"),
            user("q two"),
            assistant("a two", reasoning_content="r two"),
        ],
        None,
    ),
    "thinking": (
        [
            user("q one"),
            assistant("<think>\nr one\n</think>\n\na one"),
            user("q two"),
            assistant("<think>\nr two\n</think>\n\na two"),
        ],
        None,
    ),
    "tools": (
        [
            user("q one"),
            assistant("", tool_calls=[CALL]),
            {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "sun"},
            assistant("a two"),
        ],
        [TOOL],
    ),
}


@dataclass(frozen=True)
class Style:
    """How a template writes assistant turns.

    end: the token that ends a turn; last_end: the last one, where that is another; call_end: one with a call. before:
    what the model writes before an answer; before_last: before the last one. reasoning, thinking: what is learnt of
    those conversations, without ends, where the reasoning is not just left out, or the thinking left in the answer.
    call: how the call is written; None where it is not. refuses: cases the template raises on.
    """

    end: str
    call: str | None = None
    before: str = ""
    before_last: str | None = None
    before_call: str = ""
    after_call: str | None = None
    reasoning: tuple[str, str] | None = None
    thinking: tuple[str, str] | None = None
    last_end: str | None = None
    call_end: str | None = None
    refuses: tuple[str, ...] = ()


QWEN_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
XML_CALL = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
LLAMA_CALL = '{"name": "weather", "parameters": {"city": "Oslo"}}'
LFM_CALL = "<|tool_call_start|>[weather(city='Oslo')]<|tool_call_end|>"
GEMMA_CALL = '<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>'
DEEPSEEK_CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
    '```json\n{"city": "Oslo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
GLM_CALL = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>"
MUSE_CALL = (
    '<atem:function_calls>\n<atem:invoke name="weather">\n<atem:parameter name="city">Oslo</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>"
)
NO_TOOLS = ("tools",)
# A template that shows the thinking of the last turn only, and writes an empty scaffold where there is none.
LAST_THINKS = ("a one", "<think>\nr two\n</think>\n\na two")
# The same after a generation prompt that opens the thinking already.
LAST_GOES_ON = ("a one", "r two\n</think>\n\na two")

GEMMA4 = Style("<turn|>", GEMMA_CALL, call_end="<|tool_response>")
GEMMA = Style("<end_of_turn>", refuses=NO_TOOLS)
NEMOTRON = Style(
    "<|im_end|>",
    XML_CALL + "\n",
    before="</think>",
    before_call="</think>\n",
    reasoning=("</think>\na one", "r two\n</think>\na two"),
    thinking=("</think>\n\na one", "r two\n</think>\n\na two"),
)
NEMOTRON_TIGHT = Style(
    "<|im_end|>",
    XML_CALL + "\n",
    before="</think>",
    before_call="</think>\n",
    reasoning=("</think>a one", "r two</think>a two"),
    thinking=("</think>\n\na one", "r two\n</think>\n\na two"),
)
QWEN3_5 = Style(
    "<|im_end|>",
    XML_CALL,
    before_last="\n</think>\n\n",
    before_call="\n</think>\n\n",
    reasoning=LAST_GOES_ON,
    thinking=LAST_GOES_ON,
)
UTTERANCE = Style("<end_of_utterance>", before=" ")

STYLES = {
    "cohere": Style("<|END_OF_TURN_TOKEN|>", refuses=NO_TOOLS),
    "cohere2": Style("<|END_RESPONSE|><|END_OF_TURN_TOKEN|>", refuses=NO_TOOLS),
    "deepseek_r1_distill": Style("<｜end▁of▁sentence｜>", thinking=("\n\na one", "\n\na two")),
    "deepseekv3": Style("<｜end▁of▁sentence｜>", DEEPSEEK_CALL, thinking=("\n\na one", "\n\na two")),
    "diffusion_gemma": Style(
        "<turn|>",
        GEMMA_CALL,
        call_end="<|tool_response>",
        after_call="<|turn>model\n",
        reasoning=("a one", "<|channel>thought\nr two\n<channel|>a two"),
    ),
    "gemma": Style("<end_of_turn>", refuses=("system", "tools")),
    "gemma3": GEMMA,
    "gemma4": GEMMA4,
    "gemma4_v2": Style("<turn|>", GEMMA_CALL),
    "gemma4_v3": GEMMA4,
    "gemma4_v4": GEMMA4,
    "gemma4_v5": Style(
        "<turn|>",
        GEMMA_CALL,
        call_end="<|tool_response>",
        reasoning=("a one", "<|channel>thought\nr two\n<channel|>a two"),
    ),
    "glm4moe": Style(
        "<|user|>",
        GLM_CALL,
        before="\n<think></think>\n",
        before_call="\n<think></think>\n",
        call_end="<|observation|>",
        reasoning=("\n<think></think>\na one", "\n<think>r two</think>\na two"),
        thinking=("\n<think></think>\na one", "\n<think>r two</think>\na two"),
    ),
    "gptoss": Style(
        "<|end|>",
        '<|channel|>commentary json<|message|>{"city": "Oslo"}',
        before="<|channel|>final<|message|>",
        before_call=" to=functions.weather",
        last_end="<|return|>",
        call_end="<|call|>",
        reasoning=(
            "<|channel|>final<|message|>a one",
            "<|channel|>analysis<|message|>r two<|end|><|start|>assistant<|channel|>final<|message|>a two",
        ),
    ),
    "idefics3": UTTERANCE,
    "lfm2": Style("<|im_end|>"),
    "lfm2_v2": Style("<|im_end|>", LFM_CALL),
    "llama3": Style("<|eot_id|>"),
    "llama3_1": Style("<|eot_id|>", LLAMA_CALL),
    "llama3_2": Style("<|eot_id|>", LLAMA_CALL),
    "llava_next": Style("</s>", before=" ", refuses=NO_TOOLS),
    "muse_glimmer": Style(
        "<|eot|>",
        MUSE_CALL,
        before=" to=user<|message|>",
        before_call=" to=weather<|message|>",
        reasoning=(
            " to=self<|message|>r one<|eom|><|start|>assistant to=user<|message|>a one",
            " to=self<|message|>r two<|eom|><|start|>assistant to=user<|message|>a two",
        ),
    ),
    "nemotron_3_5_lightning": NEMOTRON_TIGHT,
    "nemotron_3_nano": NEMOTRON,
    "nemotron_3_super": NEMOTRON,
    "nemotron_3_ultra": NEMOTRON_TIGHT,
    "phi3": Style("<|end|>"),
    "phi3_5": Style("<|end|>"),
    "qwen2_5": Style("<|im_end|>", QWEN_CALL),
    "qwen2_5_vl": Style("<|im_end|>"),
    "qwen3": Style(
        "<|im_end|>", QWEN_CALL, before_last="<think>\n\n</think>\n\n", reasoning=LAST_THINKS, thinking=LAST_THINKS
    ),
    "qwen3_5_nothink": Style("<|im_end|>", XML_CALL, reasoning=LAST_GOES_ON, thinking=LAST_GOES_ON),
    "qwen3_5_think": QWEN3_5,
    "qwen3_6": QWEN3_5,
    "qwen3_8": Style(
        "<|im_end|>",
        XML_CALL,
        before="\n</think>\n\n",
        before_call="\n</think>\n\n",
        reasoning=("r one\n</think>\n\na one", "r two\n</think>\n\na two"),
    ),
    "qwen3_instruct_2507": Style("<|im_end|>", QWEN_CALL),
    "qwen3_vl": Style("<|im_end|>", QWEN_CALL),
    "smolvlm": UTTERANCE,
}
# Templates with marks of their own and no unmarked twin.
ONLY_MARKED = ("lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl")


def expected(name: str, case: str) -> list[str] | None:
    """The texts that are learnt; None where the row must be refused."""
    style = STYLES[name]
    end, last_end = style.end, style.last_end or style.end
    before_last = style.before if style.before_last is None else style.before_last
    if case in style.refuses:
        return None
    if case == "tools":
        after = before_last if style.after_call is None else style.after_call
        call = style.call and style.before_call + style.call + (style.call_end or end)
        return [call, after + "a two" + last_end] if call else None
    texts = [style.before + "a one", before_last + "a two"] if case != "single" else [before_last + "a one"]
    if case == "system":
        texts = [before_last + "a one"]
    if case == "reasoning" and style.reasoning:
        texts = list(style.reasoning)
    if case == "thinking":
        as_is = [b + CASES[case][0][i]["content"] for b, i in ((style.before, 1), (before_last, 3))]
        texts = list(style.thinking or as_is)
    ends = [end] * (len(texts) - 1) + [last_end]
    return [text + closing for text, closing in zip(texts, ends, strict=True)]


def folder() -> Path | None:
    """Where `trl` keeps its templates, None where it is not installed. Nothing of it is imported: that takes long."""
    spec = importlib.util.find_spec("trl")
    found = Path(spec.origin).parent / "chat_templates" if spec and spec.origin else None
    return found if found and found.is_dir() else None


def source(name: str) -> str:
    """The text of one template."""
    found = folder()
    assert found is not None
    return (found / f"{name}.jinja").read_text(encoding="utf-8")


_TOKEN = re.compile(
    r"<[|｜][^<>|｜\n{}]{1,40}[|｜]>|<\|[a-z_]{1,20}>|<[a-z_]{1,20}\|>|</?s>|<(?:start|end)_of_(?:turn|utterance)>|"
    r'\[/?INST\]|\[gMASK\]|<sop>|<\|"\|>'
)
_ORDINARY = ("think", "tool_call", "tool_response", "arg_key", "arg_value")


@cache
def _bytes() -> str:
    tokenizer = Tokenizer(
        models.BPE({letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str()


def tokenizer_for(template: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose control tokens are those that the template writes."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_bytes()),
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=sorted(set(_TOKEN.findall(template)) - {"<s>", "</s>"}),
        chat_template=template,
    )
    tags = [f"<{slash}{name}>" for name in _ORDINARY for slash in ("", "/")]
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in tags if tag in template])
    return tokenizer
