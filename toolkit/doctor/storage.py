"""The cache and the output folder: writable, with room, and the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.doctor.facts import Facts
from toolkit.doctor.findings import Finding, Level, first_of_each_node, size, who

_FREE_FAULT, _FREE_LEAST = 1024**3, 20 * 1024**3
# fp32 weights and two AdamW moments; the exported model comes on top.
_CHECKPOINT_BYTES, _EXPORT_BYTES = 12, 4
_ADVICE = {
    "cache": "set TOOLKIT_CACHE to a folder that every node can write to",
    "output": "give --output_dir a folder on a file system that all nodes share and may write to",
}


def check_storage(facts: Sequence[Facts], seen: dict[str, dict[int, bool]], parameters: float | None) -> list[Finding]:
    """All findings of this file. seen: for each folder that was tried, by rank, whether it saw the file that the main
    process wrote; empty where that could not write."""
    findings = []
    for what in ("cache", "output"):
        findings.append(check_writable(what, facts))
        if what in seen:
            findings.append(check_shared(what, facts, seen[what]))
        if findings[-1].level == "ok":
            findings.append(check_room(what, facts, parameters))
    return findings


def check_writable(what: str, facts: Sequence[Facts]) -> Finding:
    """Every rank can write a file. what: "cache" or "output"."""
    failed = [one for one in facts if one.folders[what].fault]
    if failed:
        folder = failed[0].folders[what]
        reason = f"{folder.path}: {folder.fault}" if folder.looked_in else folder.fault.partition(";")[0]
        return Finding(f"storage.{what}_writable", "fault", f"{reason} ({who(failed)})", _ADVICE[what])
    folder = facts[0].folders[what]
    made = "" if folder.looked_in == folder.path else ", not there yet, can be made"
    return Finding(f"storage.{what}_writable", "ok", f"{folder.path}{made}")


def check_shared(what: str, facts: Sequence[Facts], seen: dict[int, bool]) -> Finding:
    """What the main process writes, all others read. Without a shared output folder no checkpoint is whole."""
    name = f"storage.{what}_shared"
    if not seen:
        return Finding(name, "warning", "not tried: the main process could not write there", _ADVICE[what])
    blind = [one for one in facts if not seen.get(one.rank, False)]
    if not blind:
        return Finding(name, "ok", "one process" if len(facts) == 1 else "all ranks see what the main process writes")
    text = f"what the main process writes in {facts[0].folders[what].path} is not seen by {who(blind)}"
    if what == "cache":
        return Finding(name, "warning", f"{text}: each node then tokenizes for itself", _ADVICE[what])
    return Finding(name, "fault", f"{text}: checkpoints would be in pieces", _ADVICE[what])


def check_room(what: str, facts: Sequence[Facts], parameters: float | None) -> Finding:
    """Free disk. parameters: of the model to train, if known; then one checkpoint and the exported model must fit."""
    name = f"storage.{what}_room"
    scarce = min((one for one in first_of_each_node(facts)), key=lambda one: one.folders[what].free)
    free = scarce.folders[what].free
    text = f"{size(free)} free ({who([scarce])})"
    if what == "output" and parameters:
        checkpoint, needed = parameters * _CHECKPOINT_BYTES, parameters * (_CHECKPOINT_BYTES + _EXPORT_BYTES)
        text += f", one checkpoint takes {size(checkpoint)}"
        if free < needed:
            return Finding(
                name, "fault", text, f"give --output_dir a disk with {size(needed)} or more for each checkpoint kept"
            )
    if free < _FREE_LEAST:
        level: Level = "fault" if free < _FREE_FAULT else "warning"
        return Finding(name, level, text, f"make room, or {_ADVICE[what]}")
    return Finding(name, "ok", text)
