"""What a live run saw happen once, such as where a NaN was born: facts that the watcher and `measure data` write beside the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule

__all__ = ["Observed", "guarded", "parameters", "ranges", "when"]

_PLACE = ("code", "path", "line", "column", "function")


class Observed(Rule):
    """A rule over what a run saw: whoever watched it wrote down the facts, the rule says what they mean."""

    def check_series(self, run: Any) -> Iterator[Finding]:
        for entry in filter(self.counts, _first_of_each_place(run, self.code)):
            at = Location(
                entry["path"],
                entry["line"],
                entry.get("column", 1),
                function=entry.get("function", ""),
            )
            evidence = {k: v for k, v in entry.items() if k not in _PLACE}
            yield self.finding(at, self.says(entry), severity=self.weighs(entry), **evidence)

    def counts(self, entry: dict[str, Any]) -> bool:
        """Whether this observation is the mistake; names that were seen may say that it is meant."""
        return True

    def says(self, entry: dict[str, Any]) -> str:
        """What this observation means, and what to write instead."""
        raise NotImplementedError

    def weighs(self, entry: dict[str, Any]) -> Severity | None:
        """A different severity than the rule's, where the observation is weaker."""
        return None


def _first_of_each_place(run: Any, code: str) -> Iterator[dict[str, Any]]:
    """The observations of this code, of all ranks."""
    seen: set[tuple[str, int]] = set()
    for rank in run.ranks:
        for entry in rank.meta.get("observed") or ():
            key = (entry["path"], entry["line"])
            if entry["code"] == code and key not in seen:
                seen.add(key)
                yield entry | ({"world": run.world} if run.world > 1 else {})


def parameters(entry: dict[str, Any]) -> str:
    """The first of those it is about."""
    names = ", ".join((entry.get("parameters") or [])[:3])
    return f"{names} and {entry['count'] - 3} more" if entry.get("count", 0) > 3 else names


def when(entry: dict[str, Any]) -> str:
    """The update, and where several ranks train, which of them saw it."""
    rank = f" on rank {entry['rank']}" if entry.get("world", 1) > 1 else ""
    return f"at update {entry.get('step')}{rank}"


def guarded(entry: dict[str, Any]) -> str:
    """What the guard did about it, where that is more than leaving the update out."""
    done = entry.get("guard")
    return f" The guard {done}." if done else ""


def ranges(entry: dict[str, Any]) -> str:
    """What went into the operation, in a few words."""
    parts = []
    for given in (entry.get("inputs") or ())[:2]:
        if "min" in given:
            name = given.get("name", "input")
            besides = "".join(
                f", {given[kind]:,} {word}"
                for kind, word in (("inf", "infinite"), ("nan", "NaN"))
                if kind in given
            )
            parts.append(f"{name} from {given['min']:.4g} to {given['max']:.4g}{besides}")
    return "; ".join(parts)
