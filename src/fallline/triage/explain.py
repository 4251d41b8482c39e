"""The reply where the pasted code holds what can cause the complaint: the likeliest cause first, in the asker's own names and lines, then what else to look at."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from fallline.finding import Finding, Severity
from fallline.triage.causes import Cause
from fallline.triage.claim import Action
from fallline.triage.filled import filled
from fallline.triage.gathered import Gathered
from fallline.triage.honest import Reply
from fallline.triage.symptoms import symptoms

__all__ = ["beside_the_point", "from_causes", "noted", "to_the_point", "with_causes"]

_MOST = 3
# rules whose findings do not explain a complaint: about cost, accuracy of a mean, files, ranks, or values that are not finite
_COSTS = r"FL4|FL5|FL607"
_FINE = (
    r"FL10[478]|FL11[1-46]|FL12[578]|FL137|FL140|FL2(?:0[56]|1[014])|FL30[1-57]|FL60[1-5]|FL7|FL808"
)
_BESIDE = {
    "stuck": f"{_COSTS}|{_FINE}",
    "same": f"{_COSTS}|{_FINE}",
    "negative": f"{_COSTS}|{_FINE}|FL1|FL8",
    "metric": f"{_COSTS}|{_FINE}",
    "overfit": f"{_COSTS}|{_FINE}",
    "mode": f"{_COSTS}|{_FINE}|FL1|FL6",
    "nan": r"FL40[24567]|FL5|FL10[78]|FL111|FL30[1-57]|FL7",
    "memory": r"FL1(?!05)|FL2|FL3|FL5(?!01)|FL6(?!07)|FL7|FL8",
    "slow": r"FL1|FL2|FL6(?!07)|FL7|FL8",
}
_NOTED = {
    "stuck": r"FL10[56]|FL11[78]|FL126|FL13[16]|FL139|FL606|FL609|FL612|FL8",
    "nan": r"FL60[1-5]|FL608|FL61|FL20[89]",
    "slow": r"FL50[1-4]|FL404|FL607",
}
_ONE_BATCH = Action(
    "Then make it memorise one batch of 20 examples, without dropout and augmentation: that takes a minute and shows whether the code is right.",
    see="a loss near 0 within 500 updates.",
)


def beside_the_point(findings: Sequence[Finding], prose: str, shown: Collection[str]) -> bool:
    """Whether nothing that the reader found can be the cause of what the question complains of."""
    complaints = symptoms(prose, shown) if findings else frozenset()
    known = [_BESIDE[c] for c in complaints if c in _BESIDE]
    if not known or len(known) < len(complaints):
        return False
    return all(re.match(beside, f.code) for f in findings for beside in known)


def to_the_point(findings: Sequence[Finding], prose: str, shown: Collection[str]) -> list[Finding]:
    """The findings that can have to do with the complaint: to who learns too slowly, a step that is too large is no advice."""
    return [f for f in findings if not beside_the_point([f], prose, shown)]


def noted(evidence: Gathered, prose: str, shown: Collection[str]) -> Gathered:
    """The evidence, in which what the reader only notes counts as a mistake where it explains the complaint: a log of a softmax matters to who has a NaN."""
    if evidence.serious or not evidence.findings:
        return evidence
    explains = [_NOTED[c] for c in symptoms(prose, shown) if c in _NOTED]
    if not explains:
        return evidence
    found = [
        replace(f, severity=Severity("warning")) if re.match("|".join(explains), f.code) else f
        for f in evidence.findings
    ]
    return replace(evidence, findings=found)


def from_causes(causes: Sequence[Cause], beside: Sequence[Action]) -> Reply:
    """The likeliest cause as the answer, the others and what the reader found `beside` them as things to look at."""
    first, *others = causes
    says = filled(first.claim.says, first.read)
    actions = [
        replace(a, do=filled(a.do, first.read), see=filled(a.see, first.read))
        for a in first.claim.actions
    ]
    actions += [*map(_also, others), *beside]
    if "stuck" in first.claim.explains and not first.of_an_error and len(actions) < _MOST:
        actions.append(_ONE_BATCH)
    return Reply(
        says,
        None,
        actions[:_MOST],
        None,
        [first.claim.id],
        tuple(dict.fromkeys(b for c in causes[:_MOST] for b in c.claim.backs)),
    )


def with_causes(reply: Reply, causes: Sequence[Cause]) -> Reply:
    """The reply, and after its first advice what the asker's own code holds that can cause the complaint."""
    own = [_also(cause) for cause in causes if cause.claim.id not in reply.claims]
    if own:
        reply.actions = [*reply.actions[:1], *own, *reply.actions[1:]][:_MOST]
    return reply


def _also(cause: Cause) -> Action:
    says = filled(cause.claim.says, cause.read)
    return Action(says if cause.claim.weak else f"Also: {says[:1].lower()}{says[1:]}")
