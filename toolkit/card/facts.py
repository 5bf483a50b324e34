"""What a model card says, as plain values: whoever writes the card needs neither the run nor its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkit.data.account import Account


@dataclass(frozen=True)
class BaseFacts:
    """The model that training began with.

    name: as the user wrote it. hub_id: set where it is a model of the hub. random: only its architecture and tokenizer were
    taken. license: the keys `license`, `license_name` and `license_link` as its own card or file states them, no others.
    """

    name: str
    hub_id: str | None = None
    revision: str | None = None
    gguf_file: str | None = None
    random: bool = False
    license: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AdapterFacts:
    """An adapter. sizes: rank and the like by peft's names. beside: what is trained with it, in words.

    converted: it is saved as a LoRA of twice the rank, since its method moved the base.
    """

    method: str
    sizes: Mapping[str, float]
    targets: tuple[str, ...]
    beside: tuple[str, ...] = ()
    continued_from: str | None = None
    converted: bool = False


@dataclass(frozen=True)
class SourceFacts:
    """A source of rows in one of its uses.

    where: as the user wrote it. account: what became of the rows that were read; None in a stream of several sources, which
    counts them together. rows, tokens, labels: what this use has of them; labels are the tokens that are learnt.
    rows_per_epoch: set where an epoch is not each row once.
    """

    name: str
    where: str
    hub_id: str | None = None
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    account: Account | None = None
    rows: int = 0
    tokens: int = 0
    labels: int = 0
    rows_per_epoch: int | None = None


@dataclass(frozen=True)
class Metric:
    """A figure before the first step and after the last; None where it is not known. name: as in metrics.jsonl."""

    name: str
    before: float | None
    after: float | None


@dataclass(frozen=True)
class CardFacts:
    """Everything in a card.

    training, layout, versions, settings: rows of tables. held_out: the evaluation rows were taken out of the training
    sources. streamed: rows read of a stream, by all processes. exact_rows, exact_tokens: answers that were generated, and
    the longest that one could be. resumed_after: the step after which the run was gone on with. stops: tokens that end
    generation, with their ids.
    """

    title: str
    recipe: str
    toolkit: str
    base: BaseFacts
    parameters: int
    trained: int
    adapter: AdapterFacts | None
    quantization: str | None
    train: tuple[SourceFacts, ...]
    eval: tuple[SourceFacts, ...]
    held_out: bool
    streamed: Account | None
    training: Mapping[str, str]
    settings: Mapping[str, str]
    layout: Mapping[str, str]
    versions: Mapping[str, str]
    metrics: tuple[Metric, ...]
    exact_rows: int
    exact_tokens: int
    resumed_after: int | None
    chat: bool
    stops: Mapping[str, int]
    command: str
    config_yaml: str
    hub_model_id: str | None = None
