"""Print the table of docs/templates.md, from running each chat template. `--check` compares, `--write` writes.

The templates are those of the package `trl`; without it `--check` passes with a note, and the others fail.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.data.real_templates import CASES, ONLY_MARKED, STYLES, expected, folder, source, tokenizer_for  # noqa: E402
from tests.data.twin_templates import REASONS, differences, marks, runs, without_after  # noqa: E402
from toolkit.data.chat import IGNORED, encode  # noqa: E402
from toolkit.data.examples import Chat  # noqa: E402
from toolkit.data.rows import RowError  # noqa: E402

PAGE = ROOT / "docs" / "templates.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
NOTES = {reason: number for number, reason in enumerate(REASONS, start=1)}


def table() -> str:
    """The table and its notes as Markdown."""
    lines = ["| template | single | multi | system | thinking | tools | twin |", "|---|---|---|---|---|---|---|"]
    found = folder()
    assert found is not None
    for name in sorted([*STYLES, *ONLY_MARKED]):
        if not (found / f"{name}.jinja").exists():
            continue
        cells = [_cell(name, case) for case in ("single", "multi", "system")]
        thinks = name in ONLY_MARKED or STYLES[name].reasoning or STYLES[name].thinking
        thinking = {_cell(name, case) for case in ("reasoning", "thinking")} if thinks else {"n/a"}
        cells += [" ".join(sorted(thinking)), _cell(name, "tools"), _twin(name)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    notes = [f"{number}. {REASONS[reason]}" for reason, number in NOTES.items()]
    return "\n".join([*lines, "", "Notes on the twins:", "", *notes]) + "\n"


def _learnt(name: str, case: str) -> list[str]:
    messages, tools = CASES[case]
    tokenizer = tokenizer_for(source(name))
    chat = Chat(messages, tools, tuple(message["role"] == "assistant" for message in messages))
    encoded = encode(chat, tokenizer)
    return runs(encoded.input_ids, [label != IGNORED for label in encoded.labels], tokenizer)


def _cell(name: str, case: str) -> str:
    try:
        learnt = _learnt(name, case)
    except RowError as error:
        words = re.search(r"it says: (.*?)\)?; ", str(error))
        shown = words.group(1) if words else error.reason.removeprefix("the chat template ")
        shown = shown if len(shown) <= 45 else shown[:45].rsplit(" ", 1)[0]
        return f"refused: {shown.rstrip(' !./')}".replace("|", "\\|")
    right = [without_after(text) for text in marks(name, case)] if name in ONLY_MARKED else expected(name, case)
    return "ok" if learnt == right else "WRONG"


def _twin(name: str) -> str:
    found = folder()
    assert found is not None
    if name in ONLY_MARKED:
        return "has marks itself"
    if not (found / f"{name}_training.jinja").exists():
        return "none"
    reasons = set()
    for case in CASES:
        try:
            marked = marks(f"{name}_training", case)
        except Exception:  # the twin refuses this conversation
            continue
        try:
            learnt: list[str] | None = _learnt(name, case)
        except RowError:
            learnt = None
        reasons |= differences(name, learnt, marked)
    numbers = sorted(NOTES[reason] for reason in reasons)
    return "differs: " + ", ".join(f"({number})" for number in numbers) if numbers else "agrees"


def main() -> None:
    """See the head of this file."""
    if folder() is None:
        note = "the package trl, which ships the templates, is not installed: docs/templates.md was not compared"
        sys.exit(note if "--check" not in sys.argv else print(note))
    text = table()
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    new = before + BEGIN + text + END + rest.split(END)[1]
    if "--write" in sys.argv:
        PAGE.write_text(new, encoding="utf-8")
    elif "--check" in sys.argv:
        if page != new:
            sys.exit("docs/templates.md is out of date; run python docs/make_template_table.py --write")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
