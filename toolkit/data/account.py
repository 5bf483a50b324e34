"""What became of every row that was read: nothing is cut, dropped or changed without a number here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

_EXAMPLES = 3


@dataclass
class Account:
    """The rows of one source: read = whole + truncated + split + dropped.

    bad: rows that could not be used, a part of `dropped`. examples: the first few messages about them.
    pieces: what the split rows became. answers_cut, answers_lost: answers without their end, and wholly beyond
    data.max_length. tokens_read, tokens: before and after cutting and dropping for length. labels: tokens learnt.
    pasted: control tokens found in the text of messages and encoded as text. acting: those that act
    as control tokens. endless_turns: rows whose template ends a turn with no token. reasoning_lost: rows whose
    template leaves out the reasoning of a message that is learnt.
    """

    read: int = 0
    truncated: int = 0
    split: int = 0
    pieces: int = 0
    answers_cut: int = 0
    answers_lost: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    bad: int = 0
    unlearnable: int = 0
    examples: list[str] = field(default_factory=list)
    tokens_read: int = 0
    tokens: int = 0
    labels: int = 0
    pasted: Counter[str] = field(default_factory=Counter)
    acting: Counter[str] = field(default_factory=Counter)
    endless_turns: int = 0
    reasoning_lost: int = 0
    largest_id: int = 0

    @property
    def whole(self) -> int:
        """Rows that are kept as they are."""
        return self.read - self.truncated - self.split - self.dropped.total()

    def drop(self, reason: str, message: str = "") -> None:
        """Count a dropped row; the first few messages are kept."""
        self.dropped[reason] += 1
        if message and len(self.examples) < _EXAMPLES:
            self.examples.append(message)

    def add(self, other: Account) -> None:
        """Add the rows that `other` counted after these."""
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            elif item.name == "largest_id":
                self.largest_id = max(mine, theirs)
            elif item.name == "examples":
                self.examples = (mine + theirs)[:_EXAMPLES]
            else:
                setattr(self, item.name, mine + theirs)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a report."""
        # Not dataclasses.asdict: it makes a Counter of a Counter's items.
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}

    @staticmethod
    def from_json(values: dict[str, Any]) -> Account:
        """The account that `to_json` wrote."""
        counters = {name: Counter(values[name]) for name in ("dropped", "pasted", "acting")}
        return Account(**{**values, **counters})

    def __str__(self) -> str:
        lost = self.dropped.total()
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in self.dropped.most_common())
        cut = f" ({self.answers_cut:,} answers lost their end)" if self.answers_cut else ""
        split = f" + {self.split:,} split into {self.pieces:,}" if self.split else ""
        return (
            f"{self.read:,} rows = {self.whole:,} whole + {self.truncated:,} truncated{cut}{split} + {lost:,} dropped"
            + (f" ({reasons})" if lost else "")
        )
