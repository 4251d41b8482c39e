"""Traces by hand, in a compact notation, so that a rule can be tested without the reader or the watcher.

    trace("Z F B C S")                        one update, in the order a training loop should have
    trace("Z F B S " * 4)                     four updates
    trace("Z [F B(divided)]*4 C S " * 3)      three updates of four micro-batches each

A token is a letter (below) or the name of a kind; a number makes it another line of the program, `:name` says which
optimizer (a step, a zero_grad and a scheduler have `opt` unless told; `:none` for an unknown one), and brackets hold facts: `C(threshold=1.0)`, `B(divided)`
for True, `B(!divided)` for False. The same token, whatever its facts, is the same line each time it occurs:
`line_of(t, "C")` says which.

    D BATCH   E EPOCH   X EPOCH_END   Z ZERO_GRAD   F FORWARD   B BACKWARD   W GRAD_WRITE   R GRAD_READ   U UNSCALE
    C CLIP    S STEP    G SCALER_UPDATE   L SCHEDULER_STEP   M MODE   K KEEP   O OPAQUE
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from fallline import events
from fallline.events import (
    Backward,
    Batch,
    Clip,
    Epoch,
    EpochEnd,
    Event,
    Forward,
    GradRead,
    GradWrite,
    Keep,
    Mode,
    Object,
    Opaque,
    Optimizer,
    ScalerUpdate,
    SchedulerStep,
    Step,
    Trace,
    Unscale,
    ZeroGrad,
)
from fallline.finding import Finding
from fallline.location import Location
from fallline.rule import Rule

__all__ = ["codes", "line_of", "lines", "trace"]

PATH = "train.py"
LETTERS: dict[str, type[Event]] = {
    "D": Batch,
    "E": Epoch,
    "X": EpochEnd,
    "Z": ZeroGrad,
    "F": Forward,
    "B": Backward,
    "W": GradWrite,
    "R": GradRead,
    "U": Unscale,
    "C": Clip,
    "S": Step,
    "G": ScalerUpdate,
    "L": SchedulerStep,
    "M": Mode,
    "K": Keep,
    "O": Opaque,
}
KINDS: dict[str, type[Event]] = {
    thing.kind: thing
    for thing in vars(events).values()
    if isinstance(thing, type) and issubclass(thing, Event) and thing is not Event
}
# The usual facts of a kind, so that a test says only what it is about. `B(site=None)` takes one away.
USUAL: dict[type[Event], dict[str, Any]] = {
    Forward: {"training": True, "grad": True},
    Backward: {"divided": False, "reduction": "mean", "scaled": False},
    Clip: {"how": "norm", "threshold": 1.0},
    Step: {"via": "direct"},
}
OWNED = {ZeroGrad, Step, SchedulerStep, Unscale}
_TOKEN = re.compile(
    r"(?P<name>[A-Za-z_]+?)(?P<number>\d*)(?::(?P<owner>\w+))?(?:\((?P<facts>.*)\))?"
)
_REPEAT = re.compile(r"\[([^\[\]]*)\]\*(\d+)")


def trace(
    text: str,
    optimizers: Mapping[str, Mapping[str, Any]] | None = None,
    objects: tuple[Object, ...] = (),
    *,
    complete: bool = True,
    live: bool = False,
) -> Trace:
    """The trace that `text` writes down. `optimizers` gives facts by name; one SGD named `opt` unless told."""
    held = [
        Optimizer(name, **facts) for name, facts in (optimizers or {"opt": {"type": "SGD"}}).items()
    ]
    while _REPEAT.search(text):
        text = _REPEAT.sub(lambda m: (m[1] + " ") * int(m[2]), text)
    lines: dict[str, int] = {}
    events = [_event(token, lines) for token in _tokens(text)]
    made = Trace(events, [*held, *objects], complete=complete, live=live)
    made.lines = lines  # type: ignore[attr-defined]
    return made


def line_of(made: Trace, token: str) -> int:
    """The line of a token such as `B` or `B2:opt_d`."""
    return made.lines[token]  # type: ignore[attr-defined, no-any-return]


def codes(rule: Rule, made: Trace) -> set[str]:
    """The tokens that a rule reports: `{"C"}`."""
    at = {line: token for token, line in made.lines.items()}  # type: ignore[attr-defined]
    return {at[finding.at.line] for finding in rule.check(made)}


def lines(findings: list[Finding]) -> list[tuple[str, int]]:
    """Code and line of each finding, in order."""
    return sorted((f.code, f.at.line) for f in findings)


def _tokens(text: str) -> list[str]:
    """Split on spaces that are not inside brackets."""
    return re.findall(r"[^\s(]+(?:\([^)]*\))?", text)


def _event(token: str, lines: dict[str, int]) -> Event:
    match = _TOKEN.fullmatch(token)
    assert match is not None, f"not a token: {token}"
    name = match["name"]
    kind = LETTERS.get(name) or KINDS[name]
    owner = match["owner"] or ("opt" if kind in OWNED else None)
    owner = None if owner == "none" else owner
    facts = {**USUAL.get(kind, {}), **_facts(match["facts"] or "")}
    fields = {
        key: facts.pop(key) for key in ("loader", "scaler", "model", "scheduler") if key in facts
    }
    place = token.split("(")[0]
    at = Location(PATH, lines.setdefault(place, len(lines) + 1), function=facts.pop("function", ""))
    return kind(at, optimizer=owner, **facts, **fields)


def _facts(text: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in re.split(r";|,(?![^{]*})", text))):
        key, equals, value = part.partition("=")
        if not equals:
            facts[key.lstrip("!")] = not key.startswith("!")
        elif key == "parameters":
            facts[key] = frozenset(value.split("+"))
        elif key in ("left_out", "twice"):
            facts[key] = tuple(value.split("+"))
        elif key == "boundary":
            facts[key] = Location(PATH, int(value))
        else:
            facts[key] = _value(value)
    return facts


def _value(text: str) -> Any:
    if text == "inf":
        return float("inf")
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text
