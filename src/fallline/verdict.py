"""From a trace to its findings: every event rule, then one cause, one code, then the witness."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fallline.events import Batch, Epoch, EpochEnd, Event, Keep, Opaque, Sync, Trace
from fallline.finding import Finding
from fallline.location import Location
from fallline.rule import Rule, all_rules

__all__ = ["denied", "judge", "merge", "settle"]

# One cause, one code: where one mistake satisfies both rules, only the first is reported.
# "place": they point at the same line. "function": into the same function. "trace": they come from the same execution.
_PRECEDENCE: tuple[tuple[str, str, str], ...] = (
    ("FL212", "FL202", "trace"),
    ("FL212", "FL213", "trace"),
    ("FL202", "FL213", "trace"),
    ("FL204", "FL202", "trace"),
    ("FL204", "FL213", "trace"),
    ("FL302", "FL301", "trace"),
    ("FL101", "FL201", "place"),
    ("FL126", "FL118", "trace"),
    ("FL306", "FL118", "trace"),
    ("FL605", "FL601", "place"),
    ("FL401", "FL402", "function"),
    ("FL103", "FL201", "place"),
    ("FL103", "FL114", "function"),
    ("FL102", "FL115", "place"),
    ("FL102", "FL101", "place"),
    ("FL105", "FL117", "trace"),
    ("FL107", "FL105", "trace"),
    ("FL108", "FL109", "trace"),
    ("FL309", "FL320", "trace"),
    ("FL201", "FL124", "trace"),
    ("FL623", "FL620", "trace"),
    ("FL620", "FL621", "trace"),
    ("FL621", "FL622", "trace"),
    ("FL623", "FL621", "trace"),
    ("FL623", "FL622", "trace"),
    ("FL620", "FL622", "trace"),
)

# Events that happen too often, or say too little, to be shown in a witness.
_HIDDEN = (Batch, Epoch, EpochEnd, Keep, Opaque, Sync)
_WITNESS_LIMIT = 24


def judge(
    trace: Trace,
    rules: Iterable[Rule] | None = None,
    on_failure: Callable[[Rule, Exception], None] | None = None,
) -> list[Finding]:
    """The findings of the event rules over one trace, settled, each with its witness.

    With `on_failure`, a rule that fails is told there and costs no other rule's findings.
    """
    found: list[Finding] = []
    for rule in rules if rules is not None else all_rules():
        if not rule._defines("check"):
            continue
        try:
            found += list(rule.check(trace))
        except Exception as error:
            if on_failure is None:
                raise
            on_failure(rule, error)
    kept = settle(merge(found))
    shown = [e for e in trace.events if not isinstance(e, _HIDDEN)]
    places: dict[tuple[str, int], int] = {}
    for index, event in enumerate(shown):
        places.setdefault((event.at.path, event.at.line), index)
    for finding in kept:
        hit = places.get((finding.at.path, finding.at.line), 0)
        finding.evidence.setdefault("witness", _witness(shown, hit))
        if trace.settings:
            finding.evidence.setdefault("settings", list(trace.settings))
    return kept


def denied(trace: Trace, rules: Iterable[Rule]) -> set[tuple[str, str, int]]:
    """Keys of findings that this trace speaks against, in whatever setting they were found."""
    return {
        (rule.code, at.path, at.line)
        for rule in rules
        if rule._defines("denies")
        for at in rule.denies(trace)
    }


def merge(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for one code at one line, the worst first seen, and one for one cause; in order of place."""
    by_key: dict[tuple[str, str, int], Finding] = {}
    for finding in findings:
        known = by_key.get(finding.key)
        if known is None or finding.severity.rank < known.severity.rank:
            by_key[finding.key] = finding
    found = sorted(by_key.values(), key=lambda f: (f.at.path, f.at.line, f.at.column, f.code))
    return _once(found)


def _once(findings: list[Finding]) -> list[Finding]:
    """Findings of one code and one cause in one function are told where the first is; the others are counted.

    They come from different settings: a function that calls its model in one of seven ways forgets `no_grad` once.
    """
    told: dict[tuple[object, ...], Finding] = {}
    dropped: set[int] = set()
    for finding in sorted(findings, key=lambda f: f.severity.rank):
        cause = finding.related.get("cause")
        if cause is None:
            continue
        known = told.setdefault(
            (finding.code, cause, finding.at.path, finding.at.function), finding
        )
        if known is not finding:
            dropped.add(id(finding))
            before = known.evidence.setdefault("also", [])
            base = known.message.removesuffix(_more(len(before)))
            before += [
                n for n in (finding.at.line, *finding.evidence.get("also", ())) if n not in before
            ]
            known.message = base + _more(len(before))
    return [f for f in findings if id(f) not in dropped]


def _more(count: int) -> str:
    if not count:
        return ""
    calls = (
        "1 more call in this function does"
        if count == 1
        else f"{count} more calls in this function do"
    )
    return f" {calls} the same."


def settle(findings: list[Finding], *, one_trace: bool = True) -> list[Finding]:
    """Drop what another finding of the same cause already says. `one_trace`: they all come from one execution."""
    dropped: set[int] = set()
    for winner, loser, scope in _PRECEDENCE:
        if scope == "trace" and not one_trace:
            continue
        winners = [f for f in findings if f.code == winner and id(f) not in dropped]
        for finding in findings:
            if finding.code == loser and any(_same(scope, finding.at, w.at) for w in winners):
                dropped.add(id(finding))
    return [f for f in findings if id(f) not in dropped]


def _same(scope: str, one: Location, other: Location) -> bool:
    if scope == "trace":
        return True
    part = "line" if scope == "place" else "function"
    return one.path == other.path and getattr(one, part) == getattr(other, part)


def _witness(events: list[Event], hit: int) -> list[dict[str, object]]:
    """The events around the finding, in order, as the evidence shows them."""
    start = max(0, hit - _WITNESS_LIMIT // 2)
    return [
        {
            "event": e.kind.value,
            "path": e.at.path,
            "line": e.at.line,
            "function": e.at.function,
            **({"optimizer": e.optimizer} if e.optimizer else {}),
            **({"called_from": [str(c) for c in e.callers]} if e.callers else {}),
        }
        for e in events[start : start + _WITNESS_LIMIT]
    ]
