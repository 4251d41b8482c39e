"""The claims that evidence can lead to: a pasted message, a finding, a shape of the code, a fact of a log, a complaint in everyday words.

Of a thousand claims a question needs some dozen; the others are not even unpacked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fallline.triage.claim import claims
from fallline.triage.kept import kept
from fallline.triage.messages import begins

__all__ = ["led_to"]


@dataclass(slots=True)
class _Leads:
    """By what leads there, the numbers of claims."""

    messages: list[tuple[str, int]] = field(default_factory=list)
    rules: dict[str, list[int]] = field(default_factory=dict)
    shapes: dict[str, list[int]] = field(default_factory=dict)
    shows: dict[str, list[int]] = field(default_factory=dict)
    plain: dict[str, list[int]] = field(default_factory=dict)


@cache
def _leads() -> _Leads:
    return _Leads(*kept("leads", _indexed))


def _indexed() -> tuple[Any, ...]:
    found = _Leads()
    for n, claim in enumerate(claims()):
        found.messages += [(begin, n) for m in claim.messages if (begin := begins(m))]
        named = (
            (found.rules, claim.rules),
            (found.shapes, [claim.code]),
            (found.shows, [fact for group in claim.shows for fact in group]),
            (found.plain, [claim.plain]),
        )
        for where, names in named:
            for name in filter(None, names):
                where.setdefault(name, []).append(n)
    return found.messages, found.rules, found.shapes, found.shows, found.plain


def led_to(
    flat: str,
    rules: Iterable[str],
    shapes: Iterable[str],
    facts: Iterable[str],
    complaints: Collection[str],
) -> set[int]:
    """The numbers of all claims that one of these may lead to. `flat` is the text in lower case with single spaces."""
    leads = _leads()
    found = {n for begin, n in leads.messages if begin in flat}
    for where, names in (
        (leads.rules, rules),
        (leads.shapes, shapes),
        (leads.shows, facts),
        (leads.plain, complaints),
    ):
        for name in names:
            found.update(where.get(name, ()))
    return found
