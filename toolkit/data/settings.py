"""What decides how rows of a source become tokens: the shape that its first rows show, and the options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from transformers import PreTrainedTokenizerBase

from toolkit.config import DataConfig
from toolkit.data.rows import Row
from toolkit.data.shapes import check_train_on, detect_shape, used_columns
from toolkit.data.sources import read_blocks
from toolkit.data.sources.source import Source
from toolkit.data.template import require_chat_template
from toolkit.errors import UserError

Note = Callable[[str], None]

# Rows whose columns decide the shape: more than one, since the first may lack a column that is null in it.
_ROWS_LOOKED_AT = 100


@dataclass(frozen=True)
class Settings:
    """Everything besides the tokenizer that decides what a row becomes; a part of the cache's key."""

    shape: str
    columns: dict[str, str] | None
    train_on: str
    max_length: int
    overlength: str
    on_bad_row: str
    control_tokens: Literal["text", "token"]
    system_policy: Literal["keep", "fold"]


def decide_settings(
    source: Source,
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    label: str,
    note: Note,
    accepted: Collection[str],
) -> Settings:
    """Find the shape of the first rows and check that it fits the options. Raises `UserError`."""
    rows = list(islice(_good_rows(source, config), _ROWS_LOOKED_AT))
    if not rows:
        raise UserError(f"{label}: 0 usable rows in {source.spec.path}: there is no row in it")
    columns = dict.fromkeys(name for row in rows for name in row.values)
    mapping = source.spec.columns
    shape = detect_shape(columns, mapping, accepted)
    check_train_on(shape, config.train_on)
    if shape.name not in ("text", "prompt+completion") or any(
        isinstance(row.values.get("prompt"), list) for row in rows
    ):
        require_chat_template(tokenizer)
    ignored = sorted(set(columns) - used_columns(shape, mapping))
    what = f"{source.spec.path}" + (f" ({len(source.files)} files)" if len(source.files) > 1 else "")
    note(f"{label}: {what}: shape {shape.name}" + (f"; columns not used: {', '.join(ignored)}" if ignored else ""))
    return Settings(
        shape.name,
        mapping,
        config.train_on,
        config.max_length,
        config.overlength,
        config.on_bad_row,
        config.control_tokens,
        config.system_policy,
    )


def _good_rows(source: Source, config: DataConfig) -> Iterator[Row]:
    for block in read_blocks(source, streaming=config.streaming):
        for row in block.rows():
            if isinstance(row, Row):
                yield row
            elif config.on_bad_row == "error":
                raise UserError(str(row))
