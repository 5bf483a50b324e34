"""Are the same versions installed for every rank?"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.doctor.facts import Facts
from toolkit.doctor.findings import Finding, Level, compare

# What ranks exchange, or compute alike without exchanging it, depends on these; the others seldom matter.
_MUST_AGREE = ("torch", "accelerate", "transformers", "toolkit", "CUDA", "NCCL")
_SHOULD_AGREE = ("python", "driver")


def check_versions(facts: Sequence[Facts]) -> list[Finding]:
    """One finding a package: a fault where ranks that differ would compute or communicate differently."""
    return [check_version(name, facts) for name in (*_MUST_AGREE, *_SHOULD_AGREE)]


def check_version(name: str, facts: Sequence[Facts]) -> Finding:
    """Ok when every rank has the same version of `name`; names the ranks that differ."""
    level: Level = "fault" if name in _MUST_AGREE else "warning"
    remedy = f"install the same {name} on every node, best as one image or one environment on a shared disk"
    if name == "toolkit":
        remedy = "the sources differ: use one checkout on a shared disk, or bring every node to the same commit"
    return compare(f"versions.{name}", name, facts, lambda one: one.versions.get(name, "none"), level, remedy)
