"""Talk to what a run has left: a run's folder, its model/, an adapter, a merged model, a checkpoint.

    toolkit chat OUTPUT
    toolkit chat OUTPUT --compare
    toolkit chat OUTPUT --prompts rows.jsonl --output answers.jsonl

A line is a message; /reset, /help and /quit are commands, Ctrl-C stops an answer, Ctrl-D ends. Lines may come from a pipe.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.errors import UserError
from toolkit.new_output import check_new

if TYPE_CHECKING:
    from toolkit.chat.speaker import Choice, Speaker

_INTERRUPTED = 130  # what a shell makes of SIGINT

HELP = "talk to a finished model, beside its base if you like, or let it answer a file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, what is asked, and how answers are chosen."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.allow_abbrev = False
    parser.add_argument("folder", type=Path, help="a run's folder, a model's, an adapter's or a checkpoint's")
    parser.add_argument("--compare", action="store_true", help="let the model that was trained answer too")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="answer the rows of this file")
    parser.add_argument("--output", type=Path, metavar="FILE", help="with --prompts: JSON lines to write")
    parser.add_argument("--batch_size", type=int, default=16, help="with --prompts: rows answered at once (16)")
    parser.add_argument("--system", metavar="TEXT", help="a system message before every conversation")
    parser.add_argument("--max_new_tokens", type=int, default=256, help="longest answer in tokens (256)")
    parser.add_argument("--do_sample", action="store_true", help="sample; the likeliest token is taken otherwise")
    parser.add_argument("--temperature", type=float, help="with --do_sample; default: the model's own, else 1")
    parser.add_argument("--top_p", type=float, help="with --do_sample; default: the model's own, else 1")
    parser.add_argument("--seed", type=int, default=None, help="with --do_sample: the same seed, the same answers (0)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="of the weights (float32)")


def run(arguments: argparse.Namespace) -> None:
    """Load, and converse or answer the file. Raises UserError for options that contradict and models that are not there."""
    _check(arguments)
    try:
        _answer(arguments)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _answer(arguments: argparse.Namespace) -> None:
    # Of libraries about themselves; nothing here is trained.
    warnings.simplefilter("ignore")
    logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)
    # Torch and transformers take seconds to import; a typo should not have to wait for them.
    from transformers.utils.logging import set_verbosity_error

    from toolkit.chat.asking import asking_of
    from toolkit.chat.batch import answer_file
    from toolkit.chat.display import Screen
    from toolkit.chat.questions import read_questions
    from toolkit.chat.terminal import converse
    from toolkit.config import DataConfig
    from toolkit.finished import find, load_finished_tokenizer, recorded_in

    set_verbosity_error()
    place, screen, choice = find(arguments.folder), Screen(several=arguments.compare), _choice(arguments)
    recorded = recorded_in(place)
    data = DataConfig() if recorded is None else recorded.data
    # What can be wrong with rows and options shows before any weight is loaded.
    asking = asking_of(load_finished_tokenizer(place), data, arguments.system, screen.say)
    if not asking.has_template:
        screen.say("no chat template: text is continued as it is, and nothing is kept from line to line")
    if arguments.prompts is not None:
        questions = read_questions(arguments.prompts, asking, data.columns, screen.say)
    speakers = _speakers(arguments)
    screen.say(_introduction(speakers[-1], choice))
    if arguments.prompts is None:
        converse(speakers, asking, choice, screen)
        return
    answer_file(questions, speakers, choice, arguments.output, batch_size=arguments.batch_size, say=screen.say)


def _check(arguments: argparse.Namespace) -> None:
    if (arguments.prompts is None) != (arguments.output is None):
        raise UserError("--prompts FILE and --output FILE go together")
    for name, least in (("batch_size", 1), ("max_new_tokens", 1)):
        if getattr(arguments, name) < least:
            raise UserError(f"--{name} must be at least {least}")
    for name in ("temperature", "top_p", "seed"):
        if getattr(arguments, name) is not None and not arguments.do_sample:
            raise UserError(f"--{name} means nothing without --do_sample")
    if arguments.temperature is not None and not 0 < arguments.temperature < float("inf"):
        raise UserError("--temperature must be above 0; without --do_sample the likeliest token is taken")
    if arguments.top_p is not None and not 0 < arguments.top_p <= 1:
        raise UserError("--top_p must be above 0 and at most 1")
    if arguments.seed is not None and arguments.seed < 0:
        raise UserError("--seed must be at least 0")
    if arguments.output is not None:
        check_new(arguments.output, "--output")
        if not arguments.prompts.exists():
            raise UserError(f"--prompts: {arguments.prompts.absolute()} does not exist")


def _choice(arguments: argparse.Namespace) -> Choice:
    from toolkit.chat.speaker import Choice

    return Choice(
        arguments.max_new_tokens,
        arguments.do_sample,
        arguments.temperature,
        arguments.top_p,
        arguments.seed or 0,
    )


def _speakers(arguments: argparse.Namespace) -> list[Speaker]:
    """The base, where it is asked for, and the fine-tuned model."""
    from toolkit.chat.base import base_config, base_speaker
    from toolkit.chat.speaker import speaker_of
    from toolkit.finished import find, load_finished

    place = find(arguments.folder)
    if arguments.compare:
        base_config(place)  # known or not, before anything is loaded
    tuned = speaker_of("fine-tuned", *load_finished(arguments.folder, dtype=arguments.dtype))
    return [base_speaker(place, tuned, dtype=arguments.dtype), tuned] if arguments.compare else [tuned]


def _introduction(tuned: Speaker, choice: Choice) -> str:
    from toolkit.chat.speaker import temperature_of, top_p_of

    how = "greedy"
    if choice.do_sample:
        how = f"sampled: temperature {temperature_of(tuned, choice):g}, top_p {top_p_of(tuned, choice):g}, "
        how += f"seed {choice.seed}"
    where, dtype = tuned.model.device.type, str(tuned.model.dtype).removeprefix("torch.")
    typed = "; /help" if sys.stdin.isatty() else ""
    return f"{dtype} on {where}; {how}; at most {choice.max_new_tokens} tokens{typed}"
