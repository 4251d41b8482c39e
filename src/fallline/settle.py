"""Many findings to those that are reported: one for one code at one line, and one for one cause."""

from __future__ import annotations

from collections.abc import Iterable

from fallline.finding import Finding, Yields

__all__ = ["merge", "settle", "yields_of_both"]


def settle(findings: Iterable[Finding]) -> list[Finding]:
    """Without those that yield to another one that is among them, in every execution that showed them.

    Called with the findings that are wanted: what was not selected explains nothing.
    """
    found = list(findings)
    there = {(f.code, f.at.path) for f in found}
    return [
        f for f in found if not f.yields or any(there.isdisjoint(others) for others in f.yields)
    ]


def yields_of_both(one: Finding, other: Finding) -> Yields:
    """What one finding of several executions yields to. Where one of them shows it alone, it stands."""
    return tuple({*one.yields, *other.yields}) if one.yields and other.yields else ()


def merge(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for one code at one line, the worst first seen, and one for one cause; in order of place."""
    by_key: dict[tuple[str, str, int], Finding] = {}
    for finding in findings:
        known = by_key.get(finding.key)
        if known is None:
            by_key[finding.key] = finding
            continue
        yields = yields_of_both(known, finding)
        if finding.severity.rank < known.severity.rank:
            by_key[finding.key] = known = finding
        known.yields = yields
    found = sorted(by_key.values(), key=lambda f: (f.at.path, f.at.line, f.at.column, f.code))
    return _once(found)


def _once(findings: list[Finding]) -> list[Finding]:
    """Findings of one code and one cause in one function are reported where the first is; the others are counted.

    They come from different settings: a function that calls its model in one of seven ways forgets `no_grad` once.
    """
    reported: list[Finding] = []
    dropped: set[int] = set()
    for finding in sorted(findings, key=lambda f: f.severity.rank):
        if "cause" not in finding.related:
            continue
        known = next((f for f in reported if _same_cause(f, finding)), None)
        if known is None:
            reported.append(finding)
        else:
            dropped.add(id(finding))
            before = known.evidence.setdefault("also", [])
            base = known.message.removesuffix(_more(len(before)))
            before += [
                n for n in (finding.at.line, *finding.evidence.get("also", ())) if n not in before
            ]
            known.message = base + _more(len(before))
    return [f for f in findings if id(f) not in dropped]


_NEAR = 6  # lines: an encoder and its decoder, called one after the other


def _same_cause(one: Finding, other: Finding) -> bool:
    """The same code in the same function, for the same reason or right next to each other."""
    here, there = one.at, other.at
    if (one.code, here.path, here.function) != (other.code, there.path, there.function):
        return False
    near = abs(here.line - there.line) <= _NEAR
    # what is presumed of a function adds nothing to what is known of it
    return near or "presumes" in other.evidence or one.related["cause"] == other.related["cause"]


def _more(count: int) -> str:
    if not count:
        return ""
    calls = (
        "1 more call in this function does"
        if count == 1
        else f"{count} more calls in this function do"
    )
    return f" {calls} the same."
