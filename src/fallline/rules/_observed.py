"""What a live run saw happen once, such as the birth of a NaN: facts that the watcher writes beside the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fallline.location import Location

__all__ = ["guarded", "located", "observed", "ranges", "when"]

_PLACE = ("code", "path", "line", "column", "function")


def observed(run: Any, code: str) -> Iterator[dict[str, Any]]:
    """The observations of this code, of all ranks; the first of each place."""
    seen: set[tuple[str, int]] = set()
    for rank in run.ranks:
        for entry in rank.meta.get("observed") or ():
            key = (entry["path"], entry["line"])
            if entry["code"] == code and key not in seen:
                seen.add(key)
                yield entry | ({"world": run.world} if run.world > 1 else {})


def located(entry: dict[str, Any]) -> tuple[Location, dict[str, Any]]:
    """Where it was, and the rest as evidence."""
    at = Location(
        entry["path"], entry["line"], entry.get("column", 1), function=entry.get("function", "")
    )
    return at, {k: v for k, v in entry.items() if k not in _PLACE}


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
