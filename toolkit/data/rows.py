"""A row as its file holds it, and the error that names it."""

from __future__ import annotations

from typing import Any, NamedTuple

from toolkit.errors import UserError

_QUOTE_LIMIT = 200


class Row(NamedTuple):
    """One row as the file holds it.

    `line` is 1-based: the physical line where the row starts (csv, jsonl), else the element or row number.
    """

    values: dict[str, Any]
    path: str
    line: int

    @property
    def where(self) -> str:
        """`FILE:LINE`, the head of every message about this row."""
        return f"{self.path}:{self.line}"


class RowError(UserError):
    """One row that cannot be used. `reason` has no values in it, so that dropped rows can be counted by reason."""

    def __init__(self, where: str, reason: str, detail: str = "", advice: str = "", quoted: str = "") -> None:
        self.where, self.reason, self._parts = where, reason, (detail, advice, quoted)
        message = f"{where}: {reason}" if where else reason
        message += f" ({detail})" if detail else ""
        message += f"; {advice}" if advice else ""
        if quoted:
            message += f": {quoted[:_QUOTE_LIMIT]!r}"
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Row errors come back from worker processes whole."""
        return RowError, (self.where, self.reason, *self._parts)
