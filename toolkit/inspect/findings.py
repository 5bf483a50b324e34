"""What the figures mean, in sentences: what is fine, what to know, and what to look at before training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toolkit.inspect.figures import FEW_SUPERVISED, Figures, SourceFigures
from toolkit.inspect.repeats import Repeats
from toolkit.inspect.wording import counted, percent, rows_of


@dataclass(frozen=True)
class Finding:
    """One sentence. level: `good`, `note` (worth knowing) or `look` (probably not what you want)."""

    level: Literal["good", "note", "look"]
    text: str


def findings(train: Figures, held_out: Figures | None, sources: list[SourceFigures], found: Repeats) -> list[Finding]:
    """All findings, the ones to look at first."""
    result = [_length(train, sources), *_accounts(sources), _repeats(found), *_rivals(found), *_supervision(train)]
    result += _overlap(found, held_out)
    return sorted(result, key=lambda finding: ("look", "note", "good").index(finding.level))


def _length(train: Figures, sources: list[SourceFigures]) -> Finding:
    figures = train.lengths
    changed = sum(a.truncated + a.split for a in (s.account for s in sources) if a is not None)
    if figures.at_limit or changed:
        return Finding(
            "note", f"{rows_of(max(figures.at_limit, changed))} met the limit of {figures.max_length:,} tokens"
        )
    return Finding("good", f"every row fits: the longest has {figures.longest:,} of {figures.max_length:,} tokens")


def _accounts(sources: list[SourceFigures]) -> list[Finding]:
    accounts = [source.account for source in sources if source.account is not None]
    cut = sum(account.answers_cut for account in accounts)
    dropped = sum(sum(account.dropped.values()) for account in accounts)
    result = []
    if cut:
        lost = counted(cut, "answer lost its", "answers lost their")
        result.append(Finding("look", f"{lost} end, and with it the token to stop at; raise data.max_length"))
    if dropped:
        result.append(Finding("look", f"{rows_of(dropped)} dropped; the reasons are below"))
    if accounts and not dropped and not cut:
        result.append(Finding("good", f"nothing dropped: all {rows_of(sum(a.read for a in accounts))} read are used"))
    return result


def _repeats(found: Repeats) -> Finding:
    if not found.duplicate_rows:
        return Finding("good", "no row occurs twice")
    repeat = "repeats an earlier one" if found.duplicate_rows == 1 else "repeat an earlier one"
    return Finding("look", f"{rows_of(found.duplicate_rows, 'training')} {repeat}")


def _rivals(found: Repeats) -> list[Finding]:
    if not found.rival_groups:
        return []
    prompts = counted(found.rival_groups, "prompt has", "prompts have")
    return [Finding("note", f"{prompts} different answers in different rows ({rows_of(found.rival_rows)})")]


def _supervision(train: Figures) -> list[Finding]:
    if not train.few_supervised:
        return []
    verb = "has" if train.few_supervised == 1 else "have"
    tokens = f"{FEW_SUPERVISED} supervised tokens or fewer"
    return [
        Finding(
            "note", f"{rows_of(train.few_supervised)} {verb} {tokens} ({percent(train.few_supervised / train.rows)})"
        )
    ]


def _overlap(found: Repeats, held_out: Figures | None) -> list[Finding]:
    if held_out is None:
        return [Finding("note", "no evaluation rows: set data.eval or data.eval_fraction to see whether it learns")]
    if found.overlap_rows:
        verb = "is" if found.overlap_rows == 1 else "are"
        text = (
            f"{rows_of(found.overlap_rows, 'evaluation')} {verb} also trained on, so the evaluation flatters the model"
        )
        return [Finding("look", text)]
    if found.overlap_prompts:
        verb = "has its prompt" if found.overlap_prompts == 1 else "have their prompts"
        return [Finding("look", f"{rows_of(found.overlap_prompts, 'evaluation')} {verb} in the training rows too")]
    return [Finding("good", "no evaluation row is in the training rows")]
