"""What is different from the run that a checkpoint belongs to, and whether that alters what is learned."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from toolkit.config import RunConfig
from toolkit.errors import UserError

# What the two keys say is about this start, not about the run.
_OF_THE_START = ("resume", "allow_changes", "overwrite")
# Where rows lie may change; what they are is compared by the data's fingerprint.
_PLACES = ("path", "name")


@dataclass(frozen=True)
class Change:
    """One difference. alters: the curve would not be that of the uninterrupted run."""

    name: str
    old: Any
    new: Any
    alters: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.old} -> {self.new}" + ("" if self.alters else " (alters nothing that is learned)")


def config_changes(recorded: dict[str, Any], config: RunConfig) -> list[Change]:
    """Keys whose values are not those of the checkpoint's run."""
    return list(_compare(recorded, config, ""))


def record_changes(recorded: dict[str, Any], now: dict[str, Any]) -> list[Change]:
    """Data, layout and versions. Another layout computes the same; another version may round differently."""
    changes = []
    if recorded.get("data") != now["data"]:
        changes.append(Change("data", "the rows of the checkpoint's run", "other rows, tokens or labels", True))
    for part in ("layout", "versions"):
        old, new = recorded.get(part) or {}, now[part]
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                changes.append(Change(f"{part}.{key}", old.get(key), new.get(key), False))
    return changes


def refuse_unless_allowed(changes: list[Change], allowed: list[str]) -> None:
    """Raise UserError for a change that alters what is learned and is not named in `allow_changes`."""
    refused = [change for change in changes if change.alters and change.name not in allowed]
    if refused:
        names = ",".join(dict.fromkeys([*allowed, *(change.name for change in refused)]))
        raise UserError(
            f"resume: {'; '.join(map(str, refused))}: the curve would not be that of the run the checkpoint belongs to; "
            f"undo it, or allow it with --allow_changes [{names}]"
        )


def _compare(recorded: dict[str, Any], section: Any, prefix: str) -> Any:
    for item in dataclasses.fields(section):
        name, new = prefix + item.name, getattr(section, item.name)
        if name in _OF_THE_START:
            continue
        if dataclasses.is_dataclass(new) and name not in ("data.train", "data.eval"):
            yield from _compare(recorded.get(item.name) or {}, new, f"{name}.")
            continue
        # A key that is younger than the checkpoint had its default in force.
        old, plain = recorded.get(item.name, _plain(_default(item))), _plain(new)
        if old == plain:
            continue
        alters = item.metadata.get("alters", True)
        if name in ("data.train", "data.eval"):
            alters = _without_places(old) != _without_places(plain)
        yield Change(name, old, plain, alters)


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return item.default


def _plain(value: Any) -> Any:
    """As it reads in the record: sections as mappings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


def _without_places(value: Any) -> Any:
    """Sources without what their content tells better: a bare path says nothing but a place."""
    listed = value if isinstance(value, list) else [value]
    kept = []
    for one in listed:
        settings = {k: v for k, v in one.items() if k not in _PLACES and v is not None} if isinstance(one, dict) else {}
        kept.append(None if one is None else settings)
    return kept
