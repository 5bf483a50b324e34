"""A file of prompts answered into another file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.progress import MofNCompleteColumn

from toolkit.chat.output import write_lines
from toolkit.chat.questions import Question
from toolkit.chat.speaker import Choice, Speaker, answers
from toolkit.errors import UserError
from toolkit.monitor.banner import bar
from toolkit.new_output import check_new


def answer_file(
    questions: list[Question],
    speakers: list[Speaker],
    choice: Choice,
    output: Path,
    *,
    batch_size: int,
    say: Callable[[str], None],
) -> None:
    """Write a line for each question, in their order: row, prompt, answer, base (with a base), reference (if there is one).

    The file appears when it is complete. Raises UserError for a prompt that leaves no room for an answer.
    """
    check_new(output, "--output")
    for question in questions:
        if any(speaker.room(len(question.ids), choice) < 1 for speaker in speakers):
            raise UserError(
                f"--prompts: row {question.row}: {len(question.ids)} tokens do not fit the model's context of "
                f"{speakers[0].context}"
            )
    lines: list[dict[str, Any]] = [{"row": one.row, "prompt": one.prompt} for one in questions]
    with bar(MofNCompleteColumn(), active=True) as progress:
        for speaker in speakers:
            task = progress.add_task(speaker.name, total=len(questions))
            torch.manual_seed(choice.seed)
            found = answers(
                speaker,
                [one.ids for one in questions],
                choice,
                batch_size=batch_size,
                advance=lambda count, task=task: progress.advance(task, count),  # type: ignore[misc]
            )
            cut = 0
            for line, one in zip(lines, found, strict=True):
                line["base" if speaker.name == "base" else "answer"] = one.text
                cut += one.how == "length"
            if cut:
                say(f"{speaker.name}: {cut} of {len(found)} answers were cut off (--max_new_tokens, or the context)")
    for line, question in zip(lines, questions, strict=True):
        if question.reference is not None:
            line["reference"] = question.reference
    write_lines(output, lines)
    say(f"answers: {output} ({len(lines)} rows)")
