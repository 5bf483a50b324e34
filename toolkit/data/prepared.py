"""What preparation leaves: rows to learn from and to evaluate on, and where each of them came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from toolkit.data.account import Account
from toolkit.data.chat import prompt_ids
from toolkit.data.examples import Example
from toolkit.data.mixture import Mixture
from toolkit.data.settings import Settings
from toolkit.data.shapes import SHAPES, to_example
from toolkit.data.sources import read_rows
from toolkit.data.sources.source import Source
from toolkit.data.store import TokenStore
from toolkit.data.stream import RowStream
from toolkit.data.tokens import TokenRows


@dataclass(frozen=True)
class PreparedSource:
    """One source, tokenized. `fingerprint` names its content with everything that made tokens of it."""

    source: Source
    settings: Settings
    account: Account
    store: TokenStore
    fingerprint: str
    cached: bool

    def examples(self, places: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Example]:
        """The examples at these (file, line), read again from the source."""
        wanted = set(places)
        if not wanted:
            return {}
        index = {str(file): number for number, file in enumerate(self.source.files)}
        found: dict[tuple[int, int], Example] = {}
        settings = self.settings
        for row in read_rows(self.source, on_error=lambda error: None):
            place = (index.get(row.path, 0), row.line)
            if place in wanted:
                found[place] = to_example(row, SHAPES[settings.shape], settings.columns, settings.train_on)
                if len(found) == len(wanted):
                    break
        return found


@dataclass(frozen=True)
class Prompt:
    """What to ask for one evaluation row, and the right answer."""

    row: int
    ids: list[int]
    reference: str


@dataclass(frozen=True)
class PreparedData:
    """Rows to train and to evaluate on, prompts of evaluation rows, and the ids that end an assistant turn.

    sources, eval_sources: the parts of `train` and `eval`, in order. mixture: how an epoch is made of the sources.
    With a `stream`, `train` is a sample of its first rows, and there is no mixture.
    """

    train: TokenRows
    eval: TokenRows | None
    prompts: list[Prompt]
    turn_end: list[int]
    mixture: Mixture | None
    sources: list[PreparedSource]
    eval_sources: list[PreparedSource]
    stream: RowStream | None = None

    @property
    def eval_ranges(self) -> dict[str, tuple[int, int]]:
        """The rows of `eval` that each source has, by its name."""
        if self.eval is None:
            return {}
        starts = self.eval.starts
        names = [part.source.name for part in self.eval_sources]
        return {name: (int(starts[i]), int(starts[i + 1])) for i, name in enumerate(names)}

    @property
    def fingerprint(self) -> str:
        """The same on every rank, or they would not train on the same data."""
        return " ".join(part.fingerprint for part in (*self.sources, *self.eval_sources))

    def train_examples(self, rows: Iterable[int]) -> dict[int, Example]:
        """The examples that rows of `train` were made of."""
        return examples_of(self.train, self.sources, rows)


def examples_of(rows: TokenRows, sources: list[PreparedSource], row_ids: Iterable[int]) -> dict[int, Example]:
    """The example that each row was made of, read again from its source. Parts of a split row share theirs."""
    places = {row: rows.place(row) for row in row_ids}
    found: dict[int, Example] = {}
    for number, source in enumerate(sources):
        mine = {row: (file, line) for row, (part, file, line) in places.items() if part == number}
        examples = source.examples(mine.values())
        found |= {row: examples[place] for row, place in mine.items() if place in examples}
    return found


def prompts_of(
    rows: TokenRows, sources: list[PreparedSource], tokenizer: PreTrainedTokenizerBase, count: int
) -> list[Prompt]:
    """The first `count` rows that have one, as prompts to generate an answer from."""
    examples = examples_of(rows, sources, range(min(count, len(rows))))
    prompts = []
    for row, example in sorted(examples.items()):
        settings = sources[rows.place(row)[0]].settings
        asked = prompt_ids(
            example,
            tokenizer,
            where=rows.origin(row),
            control_tokens=settings.control_tokens,
            system_policy=settings.system_policy,
        )
        if asked is not None:
            prompts.append(Prompt(row, *asked))
    return prompts
