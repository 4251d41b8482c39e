"""The reply where the reader found mistakes: those asked about first, then the worst, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fallline.finding import Finding
from fallline.rules import rule_by_code
from fallline.triage.choose import Chosen
from fallline.triage.claim import Action
from fallline.triage.filled import SENTENCE, filled
from fallline.triage.fit import MOST, Fit, verdict_of
from fallline.triage.gathered import Gathered
from fallline.triage.honest import Reply
from fallline.triage.judge import asked_first, nothing_about
from fallline.triage.recognise import Question
from fallline.triage.shape import Shape

__all__ = ["distinct", "from_findings", "other"]

_FENCE = re.compile(r"```(?:python)?\n(.*?)```", re.S)


def from_findings(
    question: Question,
    evidence: Gathered,
    shape: Shape,
    chosen: list[Chosen],
    beside: list[Chosen],
    fit: Fit,
    run: str,
) -> Reply:
    """The mistakes that are there, those asked about first, then the worst, and what to write instead."""
    found, about = asked_first(question.prose, evidence.serious, shape)
    worst = found[0]
    says = f"Line {worst.at.line}: {worst.message} ({worst.code})"
    # what a watched run has shown needs no general advice beside it
    extra = [] if run else [c for c in chosen if worst.code in c.claim.rules]
    if extra:
        says = f"{says} {SENTENCE.split(filled(extra[0].claim.says, extra[0].read))[0]}"
    verdict = shape.judged(wrong=True)
    if not about:
        says, verdict = (
            f"{nothing_about(question.prose, evidence, run)} But {says[:1].lower()}{says[1:]}",
            None,
        )
    elif extra and not shape.mine:
        verdict = verdict_of(shape, extra[0].claim)
    actions = [_instead(worst, evidence, run)]
    actions += [other(f) for f in distinct(found[1:], worst.code)][: MOST - 1]
    seen = [c.claim for c in (*chosen, *beside) if c.seen and c not in extra]
    actions += [Action(SENTENCE.split(claim.says)[0]) for claim in seen]
    _with_changes(actions, [worst, *distinct(found[1:], worst.code)], evidence)
    if extra and len(actions) < MOST and worst.code not in evidence.repaired:
        actions += fit.of(extra[0].claim)
    backs = tuple(
        dict.fromkeys([*(f.code for f in found), *(extra[0].claim.backs if extra else ())])
    )
    return Reply(says, verdict, actions[:MOST], None, [c.claim.id for c in extra], backs)


def _with_changes(actions: list[Action], found: list[Finding], evidence: Gathered) -> None:
    """The reader's own changes, under the first mistake that they repair; and what they leave."""
    repaired = evidence.repaired
    for action, finding in zip(actions, found, strict=False):
        if finding.code in repaired:
            action.code, action.proof = evidence.diff, {"diff": "yes"}
            also = sorted(repaired - {finding.code})
            action.see = f"These changes also repair {', '.join(also)}. " if also else ""
            action.see += _left(evidence.remaining)
            return


def distinct(found: Sequence[Finding], first: str) -> list[Finding]:
    """One finding of each rule: the same mistake twice is one thing to mend."""
    return list({f.code: f for f in reversed(found) if f.code != first}.values())[::-1]


def _instead(finding: Finding, evidence: Gathered, run: str) -> Action:
    rule = rule_by_code(finding.code)
    advice = rule.instead if rule is not None else ""
    code = _FENCE.search(advice)
    words = " ".join(_FENCE.sub(" ", advice).split()).split(" - ")[0].rstrip(": ")
    if op := finding.evidence.get("op"):
        words = words.replace("the named operation", f"`{op}` in line {finding.at.line}")
    # of a watched run the whole remedy: its first sentence often only points to the operation
    first = words if run else SENTENCE.split(words)[0].rstrip(":")
    return Action(
        first + ("" if first.endswith((".", ")")) else "."),
        code=code[1].rstrip() if code else "",
    )


def other(finding: Finding) -> Action:
    return Action(f"Line {finding.at.line}: {SENTENCE.split(finding.message)[0]} ({finding.code})")


def _left(remaining: Sequence[Finding]) -> str:
    if not remaining:
        return "Read again with these changes, the code has no findings left."
    rest = ", ".join(f"{f.code} (line {f.at.line})" for f in remaining[:MOST])
    return f"They do not repair {rest}."
