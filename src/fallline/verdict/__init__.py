"""From a trace to its findings: every event rule, which finding yields to which, then the witness."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fallline.events import Batch, Epoch, EpochEnd, Event, Keep, Opaque, Sync, Trace
from fallline.finding import Finding
from fallline.rule import Rule, defining
from fallline.rules import event_rules, rule_by_code
from fallline.settle import merge, settle

__all__ = ["examine", "judge", "refuted", "together"]

# Events that happen too often, or say too little, to be shown in a witness.
_HIDDEN = (Batch, Epoch, EpochEnd, Keep, Opaque, Sync)
_WITNESS_LIMIT = 24

OnFailure = Callable[[Rule, Exception], None]


def judge(
    trace: Trace, rules: Iterable[Rule] | None = None, on_failure: OnFailure | None = None
) -> list[Finding]:
    """The findings of the event rules over one trace: one cause, one code."""
    return settle(examine(trace, rules, on_failure))


def examine(
    trace: Trace, rules: Iterable[Rule] | None = None, on_failure: OnFailure | None = None
) -> list[Finding]:
    """As `judge`, with the findings that yield to others, which only `settle` drops.

    With `on_failure`, a rule that fails is reported there and costs no other rule's findings.
    """
    found: list[Finding] = []
    for rule in defining(tuple(rules) if rules is not None else event_rules(), "check"):
        try:
            found += list(rule.check(trace))
        except Exception as error:
            if on_failure is None:
                raise
            on_failure(rule, error)
    kept = together(found, one_trace=True)
    _add_witnesses(kept, trace)
    return kept


def refuted(trace: Trace, rules: Iterable[Rule]) -> set[tuple[str, str, int]]:
    """Keys of findings that this trace speaks against, in whatever setting they were found."""
    return {
        (rule.code, at.path, at.line)
        for rule in defining(tuple(rules), "refutes")
        for at in rule.refutes(trace)
    }


def together(findings: Iterable[Finding], *, one_trace: bool) -> list[Finding]:
    """The findings of one execution, or of one file, merged; each with those of them that it yields to."""
    found = merge(findings)
    rules = {f.code: rule_by_code(f.code) for f in found}
    for finding in found:
        rule = rules[finding.code]
        if rule is None or not rule.yields_to or (rule.yields_within == "trace" and not one_trace):
            continue
        others = {(f.code, f.at.path) for f in found if f.code in rule.yields_to and _near(rule, f, finding)}  # fmt: skip
        if others:
            finding.yields = tuple(known | others for known in finding.yields or (frozenset(),))
    return found


def _near(rule: Rule, one: Finding, other: Finding) -> bool:
    if rule.yields_within == "trace":
        return True
    part = rule.yields_within
    return one.at.path == other.at.path and getattr(one.at, part) == getattr(other.at, part)


def _add_witnesses(findings: list[Finding], trace: Trace) -> None:
    shown = [e for e in trace.events if not isinstance(e, _HIDDEN)]
    places: dict[tuple[str, int], int] = {}
    for index, event in enumerate(shown):
        places.setdefault((event.at.path, event.at.line), index)
    for finding in findings:
        hit = places.get((finding.at.path, finding.at.line), 0)
        finding.evidence.setdefault("witness", _witness(shown, hit))
        if trace.settings:
            finding.evidence.setdefault("settings", list(trace.settings))


def _witness(events: list[Event], hit: int) -> list[dict[str, object]]:
    """The events around the finding, in order, as the evidence shows them."""
    start = max(0, hit - _WITNESS_LIMIT // 2)
    return [
        {
            "event": e.kind,
            "path": e.at.path,
            "line": e.at.line,
            "function": e.at.function,
            **({"optimizer": e.optimizer} if e.optimizer else {}),
            **({"called_from": [str(c) for c in e.callers]} if e.callers else {}),
        }
        for e in events[start : start + _WITNESS_LIMIT]
    ]
