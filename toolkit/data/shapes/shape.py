"""What a shape is: the columns that show it, and how its rows become examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolkit.data.examples import Example
from toolkit.data.rows import Row


@dataclass(frozen=True)
class Shape:
    """One way to write training data.

    needed: columns that must be there; their presence is how the shape is found. optional: columns used if there.
    build: (values by our names, row, data.train_on) -> example; raises RowError.
    train_on: values of data.train_on that mean something for it. by_mapping: found only when data.columns names it.
    """

    name: str
    needed: tuple[str, ...]
    optional: tuple[str, ...]
    build: Callable[[dict[str, Any], Row, str], Example]
    train_on: tuple[str, ...] = ("assistant", "completion", "all")
    by_mapping: bool = False
