"""Show what a model will be trained on: the very tokens, what is supervised, and every figure of the data.

Needs the tokenizer and the data of a config, no weights and no accelerator. Takes the same --config FILE and
--section.key VALUE as a recipe.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.config import DataConfig, RunConfig, SourceConfig
from toolkit.errors import UserError
from toolkit.parsing import parse
from toolkit.recipe_config import AnyRunConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from toolkit.data.prepared import PreparedData
    from toolkit.inspect.report import Head, Report

HELP = "show what a model will be trained on: tokens, supervision, lengths, repeats"
TAKES_CONFIG = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this verb; what it does not know goes to the configuration."""
    parser.usage = (
        "toolkit inspect --config FILE [--rows N] [--html FILE] [--json] [--devices N] [--section.key VALUE ...]"
    )
    parser.allow_abbrev = False
    parser.add_argument("--rows", type=int, default=5, help="rows to show token by token")
    parser.add_argument("--html", metavar="FILE", help="also write a page, one file that opens in any browser")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    parser.add_argument("--devices", type=int, default=1, help="devices to lay the first micro-batches out for")


def run(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Print the report, and write the page."""
    page = _page_path(arguments.html)
    if arguments.rows < 0 or arguments.devices < 1:
        raise UserError("--rows must be at least 0, and --devices at least 1")
    report = _report(parse(AnyRunConfig, rest), rest, arguments)
    if page is not None:
        from toolkit.inspect.page import page_of

        page.write_text(page_of(report), encoding="utf-8")
    if arguments.json:
        from toolkit.inspect.report import to_json

        print(to_json(report))
    else:
        from toolkit.inspect.terminal import print_report, terminal

        print_report(report, terminal(sys.stdout))
    if page is not None:
        print(f"page: {page} ({page.stat().st_size / 1e6:.1f} MB); open it in a browser", file=sys.stderr)


def _page_path(name: str | None) -> Path | None:
    """Where the page goes, known to be writable before any row is read."""
    if name is None:
        return None
    path = Path(name).expanduser()
    if path.is_dir():
        raise UserError(f"--html {name}: that is a folder; give the name of a file in it")
    if not path.absolute().parent.is_dir():
        raise UserError(f"--html {name}: the folder {path.absolute().parent} does not exist; make it first")
    return path


def _report(config: RunConfig, rest: list[str], arguments: argparse.Namespace) -> Report:
    # Torch and transformers take seconds to import; a typo in a config should not have to wait for them.
    import torch

    from toolkit.inspect.collect import collect
    from toolkit.inspect.report import build_report
    from toolkit.models import load_tokenizer

    tokenizer = load_tokenizer(config.model)
    notes: list[str] = []

    def note(message: str) -> None:
        notes.append(message)
        # The report repeats what matters; on standard error it neither mixes with JSON nor is it lost in a failure.
        _say(message)

    data = collect(config.data, tokenizer, _prepared(config, tokenizer, note))
    return build_report(
        config,
        _head(config, rest, tokenizer, notes),
        data,
        rows=arguments.rows,
        hidden_size=_hidden_size(config),
        devices=arguments.devices,
        device_type="accelerator" if torch.accelerator.is_available() else "cpu",
    )


def _prepared(config: RunConfig, tokenizer: PreTrainedTokenizerBase, note: Callable[[str], None]) -> PreparedData:
    from toolkit.data.prepare import prepare
    from toolkit.data.shapes import SHAPES

    steps = config.train.max_steps or 1  # of a stream only a sample is looked at
    return prepare(
        config.data, tokenizer, seed=config.seed, prompts=0, note=note, accepted=tuple(SHAPES), max_steps=steps
    )


def _say(message: str) -> None:
    encoding = sys.stderr.encoding or "ascii"
    print(message.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)


def _head(config: RunConfig, rest: list[str], tokenizer: PreTrainedTokenizerBase, notes: list[str]) -> Head:
    from toolkit.inspect.report import Head

    files = [value for flag, value in pairwise(rest) if flag == "--config"]
    files += [argument.partition("=")[2] for argument in rest if argument.startswith("--config=")]
    template = "none"
    if tokenizer.chat_template:
        template = (
            f"data.chat_template: {config.data.chat_template}" if config.data.chat_template else "the model's own"
        )
    model = str(config.model.name_or_path)
    return Head(
        config=", ".join(files),
        model=f"{model}/{config.model.gguf_file}" if config.model.gguf_file else model,
        tokenizer=type(tokenizer).__name__,
        vocabulary=len(tokenizer),
        template=template,
        train=_named(config.data.train),
        eval=_eval_named(config.data),
        notes=notes,
    )


def _named(source: str | SourceConfig | Sequence[str | SourceConfig] | None) -> str:
    listed = [source] if isinstance(source, (str, SourceConfig)) else source or []
    return ", ".join(one if isinstance(one, str) else str(one.path) for one in listed)


def _eval_named(config: DataConfig) -> str:
    if config.eval is not None:
        return _named(config.eval)
    return f"{100 * config.eval_fraction:g} % held out" if config.eval_fraction else ""


def _hidden_size(config: RunConfig) -> int | None:
    """The model's hidden size, by which rows are balanced; None where its config cannot be had or names none."""
    from transformers import AutoConfig

    source = {"gguf_file": config.model.gguf_file} if config.model.gguf_file else {}
    try:
        found = AutoConfig.from_pretrained(
            str(config.model.name_or_path),
            revision=config.model.revision or "main",
            trust_remote_code=config.model.trust_remote_code,
            **source,
        )
        return int(found.get_text_config().hidden_size)
    except Exception:  # whatever it is, the tokens can be shown without it
        return None
