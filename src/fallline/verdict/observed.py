"""From observations to findings: what an instrument has measured, judged by the rules that know what it means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fallline.finding import Finding
from fallline.rules import rule_by_code
from fallline.settle import settle
from fallline.verdict import together

__all__ = ["findings_of_observations"]


@dataclass
class _Rank:
    meta: dict[str, Any]


@dataclass
class _Run:
    """As much of a run as rules over observations look at."""

    ranks: list[_Rank]
    world: int = 1
    tracks: list[Any] = field(default_factory=list)


def findings_of_observations(observed: Sequence[dict[str, Any]]) -> list[Finding]:
    """The findings, the worst first; a code that has no rule yet is left out."""
    run = _Run([_Rank({"observed": list(observed)})])
    found: list[Finding] = []
    for code in sorted({entry["code"] for entry in observed}):
        rule = rule_by_code(code)
        found += list(rule.check_series(run)) if rule is not None else []
    kept = settle(together(found, one_trace=True))
    return sorted(kept, key=lambda f: (f.severity.rank, f.code))
