"""The code in a card that loads the model and lets it answer."""

from __future__ import annotations

from toolkit.card.facts import CardFacts

_MODEL = """from transformers import AutoModelForCausalLM, AutoTokenizer

path = "{path}"{comment}
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path)
"""
_ADAPTER = """from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

path = "{path}"{comment}
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoPeftModelForCausalLM.from_pretrained(path)  # reads the base that adapter_config.json names
"""
# peft's class would look for the base's config.json, which a GGUF file has instead.
_ADAPTER_ON_GGUF = """from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

path = "{path}"{comment}
base = {base!r}  # its folder
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(base, gguf_file={file!r})
if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
    model.resize_token_embeddings(len(tokenizer))
model = PeftModel.from_pretrained(model, path)
"""
_CHAT = """
messages = [{"role": "user", "content": "Hello!"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
"""
_TEXT = """
inputs = tokenizer("Once upon a time", return_tensors="pt")
"""
_ANSWER = """output = model.generate(**inputs.to(model.device), max_new_tokens=128)
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
"""


def loading(facts: CardFacts) -> str:
    """How to load the model, and where it stops, as Markdown."""
    stops = ", ".join(f"`{token}` ({number})" for token, number in facts.stops.items())
    said = f"```python\n{code_of(facts)}```"
    if facts.adapter is not None and facts.base.hub_id is None:
        said += "\n\nThe base was read from a folder; where it lies elsewhere, correct "
        said += "`base` above." if facts.base.gguf_file else "`base_model_name_or_path` in `adapter_config.json`."
    return said + (f"\n\nGeneration stops at {stops}, as `generation_config.json` says." if stops else "")


def code_of(facts: CardFacts) -> str:
    """Python that runs in the model's folder, or anywhere once it is on the hub."""
    comment = "" if facts.hub_model_id else "  # this folder"
    load = _MODEL if facts.adapter is None else _ADAPTER_ON_GGUF if facts.base.gguf_file else _ADAPTER
    # A path as the user wrote it need not hold for the reader; one of the hub does.
    base = facts.base.hub_id or facts.base.name
    head = load.format(path=facts.hub_model_id or ".", comment=comment, base=base, file=facts.base.gguf_file)
    return head + (_CHAT if facts.chat else _TEXT) + _ANSWER
