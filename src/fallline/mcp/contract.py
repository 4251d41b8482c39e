"""What the tools return. Findings and answers are the objects of the JSON contract, with their types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fallline.finding import Finding
from fallline.instruments.clip.threshold import Clip
from fallline.proof.record import Outcome, recorded
from fallline.report.answer import chapter
from fallline.report.json import plain
from fallline.rule import Rule
from fallline.triage.answer import Answer
from fallline.triage.evaluate import Complaint

__all__ = [
    "AnswerObject",
    "Checked",
    "ClipObject",
    "ComplaintObject",
    "DiffObject",
    "EvidenceObject",
    "FindingObject",
    "Fixed",
    "RuleObject",
    "RunObject",
    "Seen",
    "SpecialistObject",
]

_SHORT = 1000  # characters of corrected code that every answer may carry
_FEW = 3


@dataclass
class FixObject:
    """Edits replace the text between two places; lines and columns count from 1, the end is exclusive."""

    title: str
    safe: bool
    edits: list[dict[str, Any]]


@dataclass
class FindingObject:
    """One mistake at one place. `message` and `evidence` may quote names from the code: they are data."""

    code: str
    name: str
    severity: str
    message: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    specialist: str
    fix: FixObject | None
    evidence: dict[str, Any]

    @classmethod
    def of(cls, finding: Finding, path: str | None = None) -> FindingObject:
        """`path` is shown instead of the finding's own."""
        found = plain(finding.as_dict())
        fix = found.pop("fix")
        if fix is not None:
            fix = FixObject(fix["title"], fix["safe"], fix["edits"])
        return cls(**{**found, "path": path or found["path"], "fix": fix})


@dataclass
class Seen:
    """One mistake in short; check_code says more."""

    code: str
    path: str
    line: int
    message: str

    @classmethod
    def of(cls, finding: Finding, path: str | None = None) -> Seen:
        return cls(finding.code, path or finding.at.path, finding.at.line, finding.message)


@dataclass
class Checked:
    """What was found in code. Only findings of severity error and warning call for a change."""

    verdict: str
    findings: list[FindingObject]
    not_shown: int  # findings past the first hundred
    files: int
    silenced: int | None  # findings that a comment in the code hides; null: not counted
    left_out: list[str]  # files that were not read, with the reason


@dataclass
class Fixed:
    """Code with the fixes that held when it was read again."""

    code: str
    changed: bool
    diff: str
    made: list[Seen]
    remaining: list[Seen]


@dataclass
class EvidenceObject:
    """What an experiment measured when it was last recorded. `fallline prove NAME` repeats it."""

    name: str
    claim: str
    measured: str
    taught: str  # what is often taught instead; empty where nothing contradicts it
    numbers: dict[str, dict[str, Any]]  # side → quantity → value
    machine: str
    torch: str

    @classmethod
    def of(cls, outcome: Outcome) -> EvidenceObject:
        said = outcome.as_dict()
        return cls(
            name=outcome.of,
            claim=outcome.claim,
            measured=outcome.says,
            taught=outcome.taught,
            numbers=said.get("sides", {}),
            machine=outcome.machine,
            torch=outcome.torch,
        )


@dataclass
class RuleObject:
    """One rule, explained."""

    code: str
    name: str
    severity: str
    specialist: str
    seen_by: str
    fixable: bool
    what: str
    why: str
    instead: str
    fix_safety: str
    wrong: list[str]
    right: list[str]
    references: list[str]
    evidence: list[EvidenceObject]  # its own experiment first, then the facts it rests on

    @classmethod
    def of(cls, rule: Rule) -> RuleObject:
        names = (rule.code, *rule.facts)
        return cls(
            code=rule.code,
            name=rule.name,
            severity=rule.severity.value,
            specialist=rule.specialist.name,
            seen_by=rule.seen_by,
            fixable=rule.fixable,
            what=rule.what.strip(),
            why=rule.why.strip(),
            instead=rule.instead.strip(),
            fix_safety=rule.fix_safety.strip(),
            wrong=list(rule.wrong),
            right=list(rule.right),
            references=list(rule.references),
            evidence=[
                EvidenceObject.of(known) for name in names if (known := recorded(name)) is not None
            ],
        )


@dataclass
class Route:
    specialist: str
    score: float


@dataclass
class ActionObject:
    """One thing to do. `when` is its condition; `see` says how to tell that it worked."""

    do: str
    when: str
    code: str
    see: str


@dataclass
class AnswerObject:
    """The answer, and at most three things to do, in order."""

    about_training: bool  # False: not a question that fallline can answer
    answer: str
    verdict: str | None  # yes, no or depends; null where the question is not a yes/no one
    clarify: str | None  # what to ask the user first
    healthy: bool  # True: nothing is wrong; change nothing
    actions: list[ActionObject]
    findings: list[Seen]
    routes: list[Route]
    corrected: str | None  # the code with every fix that holds; the long ones only with `more`
    more: str  # with `more`: measurements, fixes with their conditions, what to avoid, what backs each statement

    @classmethod
    def of(cls, answer: Answer, shown: dict[str, str], more: bool) -> AnswerObject:
        """`shown` are the paths that findings are reported under."""
        reply = answer.reply
        fits = answer.corrected is None or len(answer.corrected) <= _SHORT
        return cls(
            about_training=reply.ours,
            answer=reply.answer,
            verdict=reply.verdict,
            clarify=reply.clarify,
            healthy=answer.healthy,
            actions=[ActionObject(a.do, a.when, a.code, a.see) for a in reply.actions],
            findings=[
                Seen.of(f, shown.get(f.at.path)) for f in answer.findings[: None if more else _FEW]
            ],
            routes=[Route(name, score) for name, score in answer.routes[:_FEW]]
            if reply.ours
            else [],
            corrected=answer.corrected if fits or more else None,
            more=chapter(answer) if more else "",
        )


@dataclass
class RunObject:
    """A watched run. Numbers that are not finite are the words nan and inf; null means not known."""

    verdict: str
    script: str
    status: str
    ranks: int
    optimizer: str
    updates: int
    skipped: int
    numbers: dict[str, float | str | None]
    findings: list[FindingObject]


@dataclass
class DiffObject:
    """What differs between two runs, first cause first. `same`: within noise, they train the same."""

    verdict: str
    same: bool
    differences: list[dict[str, Any]]
    notes: list[str]


@dataclass
class ClipObject:
    """A clip threshold from the gradient norms of one optimizer of a run; `max_norm` is null where they suggest none."""

    optimizer: str
    verdict: str
    max_norm: float | None
    clipped: float | None  # the share of the run's updates that it would have clipped
    updates: int
    norms: int  # that were measured before clipping, and count
    quantiles: dict[str, float]  # share of norms below → norm
    largest: float | None
    now: float | None  # the threshold that the run used
    clipped_now: float | None
    notes: list[str]

    @classmethod
    def of(cls, clip: Clip) -> ClipObject:
        return cls(
            optimizer=clip.optimizer,
            verdict=clip.verdict,
            max_norm=clip.max_norm,
            clipped=clip.clipped,
            updates=clip.updates,
            norms=clip.norms,
            quantiles=clip.quantiles,
            largest=clip.largest,
            now=clip.now,
            clipped_now=clip.clipped_now,
            notes=clip.notes,
        )


@dataclass
class ComplaintObject:
    """One thing that is wrong with a piece of advice, and the rule or the fact that shows it."""

    text: str
    backs: str

    @classmethod
    def of(cls, complaint: Complaint) -> ComplaintObject:
        return cls(complaint.text, complaint.backs)


@dataclass
class SpecialistObject:
    name: str
    about: str
    cases: list[str]
    rules: list[str]
    playbook: str  # the resource that holds it
