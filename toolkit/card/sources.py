"""The data of a run for its card: each source as the user named it, with the rows and tokens that came of it."""

from __future__ import annotations

from typing import Any

from toolkit.card.facts import SourceFacts
from toolkit.card.origin import without_home
from toolkit.config import RunConfig, SourceConfig
from toolkit.data.account import Account
from toolkit.data.prepared import PreparedData
from toolkit.data.sources.locate import is_hub_id
from toolkit.data.sources.source import Source
from toolkit.data.tokens import TokenRows


def train_sources(config: RunConfig, data: PreparedData) -> tuple[SourceFacts, ...]:
    """The sources of `data.train`."""
    given = listed(config.as_written.data.train)
    if data.stream is not None:
        return tuple(_source(s, one) for s, one in zip(data.stream.sources, given, strict=True))
    mixed = data.mixture is not None and data.mixture.counts != data.mixture.sizes
    counts: list[int | None] = [None] * len(given)
    if mixed and data.mixture is not None:
        counts = list(data.mixture.counts)
    return tuple(
        _source(part.source, one, part.account, data.train, number, counts[number])
        for number, (part, one) in enumerate(zip(data.sources, given, strict=True))
    )


def eval_sources(config: RunConfig, data: PreparedData) -> tuple[SourceFacts, ...]:
    """The sources of the evaluation rows: those of `data.eval`, or the training sources they were held out of."""
    if data.eval is None:
        return ()
    written = config.as_written.data
    given = listed(written.train if written.eval is None else written.eval)
    return tuple(
        _source(part.source, one, part.account, data.eval, number)
        for number, (part, one) in enumerate(zip(data.eval_sources, given, strict=True))
    )


def listed(given: Any) -> list[str]:
    """`data.train` or `data.eval` as the paths in it."""
    every = given if isinstance(given, list) else [given]
    return [str(one.path if isinstance(one, SourceConfig) else one) for one in every]


def _source(
    source: Source,
    where: str,
    account: Account | None = None,
    rows: TokenRows | None = None,
    number: int = 0,
    rows_per_epoch: int | None = None,
) -> SourceFacts:
    hub_id = source.dataset if source.dataset is not None and is_hub_id(source.dataset) else None
    sizes = (0, 0, 0)
    if rows is not None:
        part = slice(int(rows.starts[number]), int(rows.starts[number + 1]))
        tokens, labels = rows.lengths[part].sum(dtype="int64"), rows.labels_per_row[part].sum(dtype="int64")
        sizes = (part.stop - part.start, int(tokens), int(labels))
    spec = source.spec
    of_hub = (spec.config, spec.split, spec.revision) if hub_id is not None else (None, None, None)
    return SourceFacts(source.name, without_home(where), hub_id, *of_hub, account, *sizes, rows_per_epoch)
