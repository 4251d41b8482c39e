"""Two records side by side: the first update that differs, in the order of cause and effect, and the first operation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fallline.runs.noise import judge

__all__ = ["Difference", "Draw", "Operation", "compare_updates", "first_operation", "load"]

Row = dict[str, Any]
_PARAMETER_ROOM = (
    16.0  # Adam divides gradients by their own size, those that are nothing but rounding too
)

# In the order in which one causes the next
_STAGES = (
    ("before", "the parameters before training"),
    ("batches", "the batch"),
    ("losses", "the loss"),
    ("gradients", "the gradient"),
    ("rates", "the learning rate"),
    ("state", "the optimizer's state"),
    ("parameters", "the parameters"),
)


@dataclass
class Difference:
    """The first update after which the runs are not the same, and what differs first within it."""

    update: int  # from 0
    what: str
    stage: str
    parameters: list[str] = field(default_factory=list)  # that differ there, in the model's order
    relative: float | None = (
        None  # how far the values of the parameters are apart after this update
    )
    last_relative: float | None = None  # and after the last update of both
    rounding: bool = False  # as far as rounding carries runs apart, and no further


def load(path: Path) -> list[Row]:
    """The lines of a record; a last one that was cut off is left out."""
    rows = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
    return rows


def compare_updates(a: list[Row], b: list[Row]) -> Difference | None:
    """The first difference of two runs, update by update; None where all that both did is the same."""
    pairs = list(zip(_updates(a), _updates(b), strict=False))
    for place, (here, there) in enumerate(pairs):
        for stage, what in _STAGES:
            ours, theirs = here.get(stage), there.get(stage)
            if ours is None or theirs is None or ours == theirs:
                continue
            if stage == "before" and place:
                what = "the parameters, changed by hand since the update before"
            named = stage in ("before", "gradients", "state", "parameters")
            names = [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)] if named else []
            changed = names or [n for n, v in here["parameters"].items() if there["parameters"].get(n, v) != v]  # fmt: skip
            return Difference(
                here["update"], what, stage, changed, _apart(here, there), _apart(*pairs[-1]), _by_rounding(pairs)
            )  # fmt: skip
    return None


def _by_rounding(pairs: list[tuple[Row, Row]]) -> bool:
    found = {here["update"]: _apart(here, there) or 0.0 for here, there in pairs}
    return judge(found, "float32", room=_PARAMETER_ROOM).jump is None


def _updates(rows: list[Row]) -> list[Row]:
    return [row for row in rows if "parameters" in row]


def _apart(here: Row, there: Row) -> float | None:
    """The largest difference of a parameter, against its own size, of the values that were kept."""
    worst: float | None = None
    for name, ours in here.get("values", {}).items():
        theirs = there.get("values", {}).get(name)
        size = max((abs(v) for v in ours), default=0.0)
        if theirs is not None and len(theirs) == len(ours) and size > 0:
            off = max(abs(x - y) for x, y in zip(ours, theirs, strict=True)) / size
            worst = off if worst is None or not off <= worst else worst
    return worst


@dataclass
class Draw:
    """The user's code asked a source for a number and got another one than in the other run."""

    source: str
    path: str
    line: int


@dataclass
class Operation:
    """The first operation that differs, and what about it.

    kind: "kernel" (same inputs, other results), "random" (a draw from torch's generator), "number" (a number that came from Python),
    "data" (a tensor that no operation made), "unwritten" (memory that nobody had written), "order", "path" (another operation ran).
    """

    kind: str
    update: int
    op: str
    phase: str
    path: str
    line: int
    detail: str = ""
    draws: list[Draw] = field(default_factory=list)  # that differ before it, the nearest first


def first_operation(a: list[Row], b: list[Row], *, from_forward: bool = False) -> Operation | None:
    """Operation by operation; draws of the user's code that differ on the way are candidates for the cause.

    `from_forward` begins with the first forward pass of both: a resumed run loads before, several ranks agree on parameters.
    """
    ours, theirs = list(_entries(a, from_forward)), list(_entries(b, from_forward))
    mine = [e for e in ours if "op" in e[1]]
    other = [e for e in theirs if "op" in e[1]]
    for (update, here), (_, there) in zip(mine, other, strict=False):
        found = _kind(here, there)
        if found is not None:
            kind, detail = found
            if kind == "path" and _shuffled(mine, other, update):
                kind = "order"
            draws = _draws(_before(ours, here), _before(theirs, there))
            return Operation(
                kind, update, here["op"], here["phase"], here["path"], here["line"], detail, draws
            )
    return None


def _entries(rows: list[Row], from_forward: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    for place, row in enumerate(rows):
        begin = row.get("forward_at", 0) if from_forward and place == 0 else 0
        for entry in row.get("operations", [])[begin:]:
            yield row["update"], entry


def _kind(here: dict[str, Any], there: dict[str, Any]) -> tuple[str, str] | None:
    if (here["op"], here["path"], here["line"]) != (there["op"], there["path"], there["line"]):
        return "path", f"{there['op']} at {there['path']}:{there['line']}"
    if here["shapes"] != there["shapes"]:
        return "data", f"shapes {here['shapes']} against {there['shapes']}"
    if here["arguments"] != there["arguments"]:
        return "number", f"{here['arguments']} against {there['arguments']}"
    if here.get("generator") != there.get("generator"):
        return "random", ""
    if here["given"] != there["given"]:
        return ("random", "") if here.get("random") else ("data", "")
    if here["made"] != there["made"]:
        if here.get("unwritten"):
            return "unwritten", ""
        return ("random" if here.get("random") else "kernel"), ""
    return None


def _shuffled(
    mine: list[tuple[int, dict[str, Any]]], other: list[tuple[int, dict[str, Any]]], update: int
) -> bool:
    """Both ran the same operations in this update, one after another in another order."""

    def counted(entries: list[tuple[int, dict[str, Any]]]) -> Counter[tuple[str, str, int]]:
        return Counter((e["op"], e["path"], e["line"]) for u, e in entries if u == update)

    return counted(mine) == counted(other)


def _before(
    entries: list[tuple[int, dict[str, Any]]], operation: dict[str, Any]
) -> list[dict[str, Any]]:
    found = []
    for _, entry in entries:
        if entry is operation:
            break
        if "draw" in entry:
            found.append(entry)
    return found


def _draws(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[Draw]:
    """Draws with another state, the nearest first, each line once."""
    found: dict[tuple[str, str, int], Draw] = {}
    for source in {entry["draw"] for entry in ours}:
        mine = [e for e in ours if e["draw"] == source]
        other = [e for e in theirs if e["draw"] == source]
        for here, there in zip(mine, other, strict=False):
            if here["state"] != there["state"]:
                here["differs"] = True
        if len(other) < len(mine):
            mine[-1]["differs"] = True
    for entry in reversed(ours):
        if entry.get("differs"):
            key = (entry["draw"], entry["path"], entry["line"])
            found.setdefault(key, Draw(*key))
    return list(found.values())
