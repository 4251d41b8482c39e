"""Which of many names are meant: some of a set, those that a pattern finds, or those that a function of one file says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import TypeAlias

__all__ = ["Wanted", "wanted_of"]

Wanted: TypeAlias = frozenset[str] | re.Pattern[str] | Callable[[str], object]

_MOST_KNOWN = 100_000


def wanted_of(names: Iterable[str], wanted: Wanted) -> list[str]:
    """The names that are meant, in their order."""
    if isinstance(wanted, frozenset):
        return [name for name in names if name in wanted]
    if not isinstance(wanted, re.Pattern):
        return [name for name in names if wanted(name)]
    known = _known(wanted)
    if len(known) > _MOST_KNOWN:
        known.clear()
    for name in names:
        if name not in known:
            known[name] = wanted.search(name) is not None
    return [name for name in names if known[name]]


@cache
def _known(wanted: re.Pattern[str]) -> dict[str, bool]:
    """What the pattern was found in: files of one project call the same functions."""
    return {}
