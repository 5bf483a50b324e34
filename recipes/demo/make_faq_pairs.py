"""Pairs for preference learning from a file of questions and answers: the right answer, and that of another question.

    python recipes/demo/make_faq_pairs.py $FAQ_DIR/faq-en.jsonl pairs.jsonl

The other answer is drawn by a fixed seed from a question of another category, so that it is well written and wrong.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path


def main() -> None:
    """Read `q`, `a` and `category` of each line, write `prompt`, `chosen` and `rejected`."""
    source, target = map(Path, sys.argv[1:3])
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    rng = random.Random(0)
    with target.open("w", encoding="utf-8") as file:
        for row in rows:
            others = [other["a"] for other in rows if other["category"] != row["category"]]
            pair = [{"role": "assistant", "content": text} for text in (row["a"], rng.choice(others))]
            prompt = [{"role": "user", "content": row["q"]}]
            file.write(
                json.dumps({"prompt": prompt, "chosen": [pair[0]], "rejected": [pair[1]]}, ensure_ascii=False) + "\n"
            )


if __name__ == "__main__":
    main()
