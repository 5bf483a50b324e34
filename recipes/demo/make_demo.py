"""Writes the demos that the recipes train when they are given nothing.

    python recipes/demo/make_demo.py            # write data, tokenizer and model config next to this script
    python recipes/demo/make_demo.py --check    # exit 1 if a file differs from what would be written

The task is to turn dates, clock times and amounts of money into plain figures: "Write 3 March 1987 as an ISO date." ->
"1987-03-03". It is small enough to learn from random weights in well under a minute on two CPU cores, and it can't be
learnt by heart: no date, time or amount of eval.jsonl occurs in any row of train.jsonl, in whatever phrasing.

The pairs of answers for recipes/dpo.py are the same answers, and the same figures in another form, which is to be unlearnt.
Those for recipes/kto.py are one answer of each pair. The documents for recipes/pretrain.py are the same questions and answers
as plain text.

There are no weights here. Whoever trains the demo makes them from model/config.json with a seed. Only recipes/distill.py needs
weights, of a teacher: make_teacher.py trains them, and student/ is a smaller model with the same tokenizer.

The rows depend on nothing but this file and questions.py. The bytes of the tokenizer files also depend on the versions of
`tokenizers` and `transformers`, so --check is meant for the versions of constraints.txt.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from questions import Message, rows  # beside this file

HERE = Path(__file__).resolve().parent
SEED = 20240229
TRAIN_ROWS = 3000
EVAL_ROWS = 200
PAIRS = 1000
VOCAB_SIZE = 640


# --- model and tokenizer ---------------------------------------------------------------------------------------------

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tokenizer(folder: Path, texts: list[str]) -> None:
    """Trains byte-level BPE on the training conversations and saves it as AutoTokenizer reads it."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    # Digits go in pairs, as in years, days, minutes and cents: 1987 is 19 87. Rows are shorter than with one token a
    # digit, and a copied year is two tokens instead of four.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d{1,2}"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


# Two layers are the fewest that can look up a token by what stands before it, and wide layers are quick on a CPU. Eight
# heads with a small rope_theta (rows are at most about a hundred tokens) learnt faster than four with the usual 10000.
MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "initializer_range": 0.045,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "use_cache": True,
    "bos_token_id": None,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "dtype": "float32",
}
STUDENT_SIZES = {
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "head_dim": 16,
}
GENERATION_CONFIG = {"do_sample": False, "eos_token_id": 2, "pad_token_id": 0, "max_new_tokens": 32}


# --- files -----------------------------------------------------------------------------------------------------------


def write_demo(folder: Path) -> None:
    """Writes all files of the demo into `folder`."""
    rng = random.Random(SEED)
    held_out: set[str] = set()
    evaluation: list[list[Message]] = []
    for facts, messages in rows(rng, EVAL_ROWS, lambda fact: True):
        held_out.update(facts)
        evaluation.append(messages)
    training, trained = [], set()
    for facts, messages in rows(rng, TRAIN_ROWS, lambda fact: fact not in held_out):
        trained.update(facts)
        training.append(messages)
    assert not trained & held_out, "a fact of eval.jsonl is in train.jsonl"

    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "train.jsonl", training)
    write_rows(folder / "eval.jsonl", evaluation)
    write_pairs(folder / "pairs.jsonl", training[:PAIRS])
    write_pairs(folder / "pairs_eval.jsonl", evaluation)
    write_judged(folder / "judged.jsonl", training[:PAIRS])
    write_judged(folder / "judged_eval.jsonl", evaluation)
    write_documents(folder / "documents.jsonl", training, random.Random(SEED + 1))
    write_documents(folder / "documents_eval.jsonl", evaluation, random.Random(SEED + 2))
    # All hundred pairs of digits become tokens, also those that are rare in the rows.
    texts = [f"{number:02d}" for number in range(100)] * 100
    texts += [f"{message['role']}\n{message['content']}" for messages in training for message in messages]
    write_tokenizer(model, texts)
    write_json(model / "config.json", MODEL_CONFIG)
    write_json(model / "generation_config.json", GENERATION_CONFIG)
    student = folder / "student"
    shutil.copytree(model, student, dirs_exist_ok=True)
    write_json(student / "config.json", MODEL_CONFIG | STUDENT_SIZES)


def write_rows(path: Path, conversations: list[list[Message]]) -> None:
    lines = [json.dumps({"messages": messages}) for messages in conversations]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def write_pairs(path: Path, conversations: list[list[Message]]) -> None:
    """The last answer of each conversation is the better one; the other has the same figures, written as people write them."""
    lines = []
    for messages in conversations:
        chosen = messages[-1]
        rejected = {**chosen, "content": otherwise(chosen["content"])}
        lines.append(json.dumps({"prompt": messages[:-1], "chosen": [chosen], "rejected": [rejected]}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def write_judged(path: Path, conversations: list[list[Message]]) -> None:
    """One answer of each pair, the better and the other in turn, with what it is worth."""
    lines = []
    for number, messages in enumerate(conversations):
        answer, good = messages[-1], number % 2 == 0
        said = answer if good else {**answer, "content": otherwise(answer["content"])}
        lines.append(json.dumps({"prompt": messages[:-1], "completion": [said], "label": good}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def write_documents(path: Path, conversations: list[list[Message]], rng: random.Random) -> None:
    """Some conversations at a time as one plain text, a question and its answer on each line."""
    lines, left = [], list(conversations)
    while left:
        count = rng.choice([1, 2, 4, 8, 16])
        said = [message["content"] for messages in left[:count] for message in messages if message["role"] != "system"]
        text = "\n".join(f"{question} {answer}" for question, answer in zip(said[::2], said[1::2], strict=True))
        lines.append(json.dumps({"text": text}))
        left = left[count:]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def otherwise(answer: str) -> str:
    """1987-03-09 -> 9/3/1987, 15:41 -> 15.41, 12.05 -> 12,05."""
    if "-" in answer:
        year, month, day = answer.split("-")
        return f"{int(day)}/{int(month)}/{year}"
    return answer.replace(".", ",").replace(":", ".")


def write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8", newline="\n")


def differing(folder: Path) -> list[str]:
    """Names of the files in `folder` that are missing or not what write_demo writes."""
    with tempfile.TemporaryDirectory() as scratch:
        write_demo(Path(scratch))
        written = sorted(path for path in Path(scratch).rglob("*") if path.is_file())
        names = [path.relative_to(scratch).as_posix() for path in written]
        fresh = [path.read_bytes() for path in written]
    return [n for n, data in zip(names, fresh, strict=True) if not same(folder / n, data)]


def same(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def main() -> int:
    """Write the demo, or with --check say what differs; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the demo's data, tokenizer and model config.")
    parser.add_argument("--output", type=Path, default=HERE, help="folder to write to (default: this script's)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    options = parser.parse_args()
    if not options.check:
        write_demo(options.output)
        return 0
    names = differing(options.output)
    for name in names:
        print(f"{options.output / name} differs from what make_demo.py writes: run it without --check", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
