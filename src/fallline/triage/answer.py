"""The answer: what is known, what to measure next, which fixes apply when, what to avoid, how to verify. In that order."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from fallline.finding import Finding
from fallline.triage.gathered import Gathered
from fallline.triage.numbers import trends
from fallline.triage.playbook import Avoid, Case, Fact, Fixing, Statement, Step, backing
from fallline.triage.recognise import Match, recognise
from fallline.triage.reply import Reply, compose
from fallline.triage.words import tokens

__all__ = ["Answer", "answer"]

SURE = 0.3  # below this a question is not ours
_SECOND = 0.6  # a second route counts when it is this close to the first
_NAMES = 3  # a question names a condition when it shares this many words with it
_SAME = 0.65  # and a second case of the same specialist when the question is this much like it

_FALLS = re.compile(
    r"(?i)loss (is |keeps |steadily |still )*(going down|decreas|fall|improv|dropp)|"
    r"(learning|training|converg)\w* (is )?(well|fine|good|stead)|metrics? (are |is )?(improv|good|fine)|works? (well|fine|great)"
)
# what works here fails there: "fine in float32, NaN under autocast" is not a healthy run
_TROUBLE = re.compile(
    r"(?i)\b(nans?|inf|errors?|exception|traceback|crash\w*|oom|out of memory|slow\w*|diverg\w+|explod\w+|hangs?|stuck|leak\w*|worse|overfit\w*|"
    r"constant\w*|exactly|(?:to|at|is) (?:zero|0(?!\.?\d))|differ\w*|spikes?|plateau\w*|nothing|fluctuat\w*|oscillat\w*|increas\w*|throughput|strange|weird|accuracy (has |is |was )?(drop|fell|fall|decreas)\w*)\b"
)


# only these are asked whether a run is healthy; who asks for a launch command or a checkpoint in a run that works wants it all the same
_DOCTORS = frozenset({"gradient-management", "debugging-techniques"})
_HOW = re.compile(
    r"(?i)\b(how (do|can|to|should|would)|where (do|does|to|should)|set ?up|implement\w*)\b"
)


@dataclass
class Answer:
    """What `fallline ask` says, before it is put into words."""

    question: str
    routes: list[tuple[str, float]]
    cases: list[Case]
    findings: list[Finding] = field(default_factory=list)
    known: list[Statement] = field(default_factory=list)
    measure: list[Step] = field(default_factory=list)
    tree: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    fixes: list[Fixing] = field(default_factory=list)
    avoid: list[Avoid] = field(default_factory=list)
    verify: list[Step] = field(default_factory=list)
    corrected: str | None = None
    healthy: bool = False
    run: str = ""  # the folder of a watched run that came along
    reply: Reply = field(default_factory=lambda: Reply(""))

    def branches(self, few: int | None) -> list[tuple[str, str, tuple[str, ...]]]:
        """The branches of the tree that the question is nearest to, in the tree's own order."""
        near = sorted(self.tree, key=lambda row: -_shared(row[0], self.question))[:few]
        return [row for row in self.tree if row in near]

    def measured(self) -> list[Fact]:
        """What was measured for everything that this answer cites, findings first."""
        stated: list[Statement | Step | Fixing | Avoid]
        stated = [*self.known, *self.measure, *self.fixes, *self.avoid, *self.verify]
        cited = [name for s in stated for name in s.backs] + [n for _, _, b in self.tree for n in b]
        return backing([*(f.code for f in self.findings), *cited])

    def as_dict(self) -> dict[str, Any]:
        """The object of the JSON contract."""
        return {
            "answer": self.reply.answer,
            "verdict": self.reply.verdict,
            "clarify": self.reply.clarify,
            "actions": [
                {"do": a.do, "if": a.when, "code": a.code, "see": a.see} for a in self.reply.actions
            ],
            "claims": self.reply.claims,
            "routes": [{"specialist": name, "score": score} for name, score in self.routes],
            "findings": [f.as_dict() for f in self.findings],
            "known": [{"text": s.text, "backs": list(s.backs)} for s in self.known],
            "measure": [
                {"run": s.run, "tells": s.tells, "backs": list(s.backs)} for s in self.measure
            ],
            "tree": [{"when": w, "then": t, "backs": list(b)} for w, t, b in self.tree],
            "fixes": [
                {
                    "title": f.title,
                    "when": f.when,
                    "code": f.code,
                    "because": f.because,
                    "costs": f.costs,
                    "backs": list(f.backs),
                }
                for f in self.fixes
            ],
            "avoid": [
                {
                    "advice": a.advice,
                    "tempts": a.tempts,
                    "because": a.because,
                    "backs": list(a.backs),
                }
                for a in self.avoid
            ],
            "verify": [
                {"run": s.run, "tells": s.tells, "backs": list(s.backs)} for s in self.verify
            ],
            "measured": [
                {"name": f.name, "says": f.says, "taught": f.source} for f in self.measured()
            ],
            "corrected": self.corrected,
            "cases": [c.id for c in self.cases],
        }


def answer(question: str, evidence: Gathered | None = None, run: str = "") -> Answer:
    """Answer a question, with whatever evidence came along: findings, corrected code, the folder of a watched run."""
    evidence = evidence or Gathered([])
    serious = evidence.serious
    matches = recognise(question, [f.code for f in serious])
    chosen = _chosen(matches)
    reply = Answer(
        question,
        _routes(matches),
        [m.case for m in chosen],
        sorted(evidence.findings, key=lambda f: f.severity.rank),
    )
    reply.corrected, reply.run = evidence.corrected, run
    doctors = any(m.case.specialist in _DOCTORS for m in chosen[:1])
    reply.healthy = doctors and not serious and _healthy(question)
    for match in chosen:
        case = match.case
        reply.known += case.knows
        reply.measure += [_looked_up(step, run) for step in case.measure]
        reply.tree += case.tree
        reply.fixes += [] if reply.healthy else case.fix
        reply.avoid += case.avoid
        reply.verify += case.verify
    reply.measure, reply.verify = _once(reply.measure), _once(reply.verify)
    reply.avoid.sort(key=lambda a: -_shared(a.advice, question))
    # fixes stand in order of preference; those whose condition the question names itself come first
    reply.fixes.sort(key=lambda f: _shared(f.when, question) < _NAMES)
    reply.known.sort(key=lambda s: -_shared(s.text, question))
    reply.fixes = list({fix.title: fix for fix in reply.fixes}.values())
    reply.avoid = list({avoid.advice: avoid for avoid in reply.avoid}.values())
    sure = [name for name, score in reply.routes if score >= SURE]
    reply.reply = compose(question, evidence, reply.cases, sure, run=run, healthy=reply.healthy)
    return reply


def _healthy(question: str) -> bool:
    falls = _FALLS.search(question) is not None or "loss falls" in trends(question)
    return falls and _TROUBLE.search(question) is None and _HOW.search(question) is None


def _once(steps: list[Step]) -> list[Step]:
    """Each command once, with all that it tells."""
    merged: dict[str, Step] = {}
    for step in steps:
        if (known := merged.get(step.run)) is not None:
            backs = tuple(dict.fromkeys([*known.backs, *step.backs]))
            told = known.tells if step.tells in known.tells else f"{known.tells} {step.tells}"
            step = Step(step.run, told, backs)
        merged[step.run] = step
    return list(merged.values())


def _shared(advice: str, question: str) -> int:
    """How many words of an advice the question holds, endings aside: what was asked about is refused first."""
    asked = {word[:5] for word in tokens(question)}
    return len({word[:5] for word in tokens(advice) if len(word) > 3} & asked)


def _looked_up(step: Step, run: str) -> Step:
    """A measurement that a watched run has made already is in its report."""
    if run and step.run == "fallline run train.py":
        return step._replace(run=f"fallline report {run}")
    return step


def _chosen(matches: list[Match]) -> list[Match]:
    """The first case; beside it one of another specialist where the question crosses, or one more of its own."""
    sure = [m for m in matches if m.score >= SURE]
    if not sure:
        return []
    first = sure[0]
    own = [
        m
        for m in sure[1:]
        if m.case.specialist == first.case.specialist and m.like >= _SAME * first.like
    ]
    others = [
        m
        for m in sure[1:]
        if m.case.specialist != first.case.specialist
        and m.named
        and m.score >= _SECOND * first.score
    ]
    return [first, *own[:1], *others[:1]]


def _routes(matches: list[Match]) -> list[tuple[str, float]]:
    """Specialists with the score of their best case, best first."""
    best: dict[str, float] = {}
    for match in matches:
        best.setdefault(match.case.specialist, match.score)
    return sorted(best.items(), key=lambda r: -r[1])
