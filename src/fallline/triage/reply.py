"""The reply: one to three sentences that answer the question, and at most three things to do, in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from fallline.finding import Finding
from fallline.triage.arithmetic import reckoned
from fallline.triage.choose import Chosen, choose
from fallline.triage.claim import Action
from fallline.triage.evidence import Gathered
from fallline.triage.playbook import Case
from fallline.triage.recognise import Question
from fallline.triage.shape import Shape
from fallline.triage.words import foreign, other_framework, spelled, tokens

__all__ = ["Reply", "compose"]

_MOST = 3
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")
_FENCE = re.compile(r"```(?:python)?\n(.*?)```", re.S)
_JUDGE = re.compile(
    r"(?i)\b(?:is|are|does|do|anything|what|review|check)\b[^.?!\n]{0,60}\b(?:ok|okay|right|correct|wrong|fine|good|look|place|normal|this|review|problem)\b|^\W*review\b"
)
NOT_OURS = (
    "This does not look like a question about PyTorch training, and fallline knows nothing else."
)
ASK_BACK = "What do you see: an error message, a loss that is NaN, flat or rising, a run that is slow, or one that runs out of memory?"
SHOW = Action(
    "Paste the message or the loop, or let fallline look:",
    code="fallline check train.py     # reads the code\nfallline run train.py       # watches the run and names what goes wrong",
)


@dataclass(slots=True)
class Reply:
    """What a person reads first."""

    says: str
    verdict: str | None = None
    actions: list[Action] = field(default_factory=list)
    clarify: str | None = None
    claims: list[str] = field(default_factory=list)
    backs: tuple[str, ...] = ()
    ours: bool = True

    @property
    def answer(self) -> str:
        """The sentences with their yes or no."""
        word = {"yes": "Yes. ", "no": "No. ", "depends": "It depends. "}
        return word.get(self.verdict or "", "") + self.says


def compose(
    text: str,
    evidence: Gathered,
    cases: Sequence[Case],
    specialists: Sequence[str],
    *,
    run: str = "",
    healthy: bool = False,
) -> Reply:
    """Answer from the evidence, else from the claims, else from the nearest case, else ask back."""
    question = Question.of(text)
    words = spelled(tokens(question.text))
    shape = Shape.of(question.prose)
    codes = [f.code for f in evidence.serious]
    chosen = choose(question.text, question.prose, words, codes, specialists)
    fit = _Fit(words, question.text.lower())
    told = bool(chosen and chosen[0].told)
    strange = other_framework(question.text) or (not cases and not told and foreign(question.text))
    if strange and not evidence.findings and not run:
        return Reply(NOT_OURS, ours=False)
    if evidence.serious and not told:
        return _from_findings(question, evidence, shape, chosen, fit)
    if healthy and not told:
        return _healthy(chosen, fit)
    if not told and (sum_ := reckoned(question.text)) is not None:
        return Reply(sum_.says, sum_.verdict if shape.decides else None, sum_.actions)
    if chosen:
        return _from_claims(chosen, shape, fit, run)
    if run:
        return _clean_run(run)
    if not cases and not evidence.findings:
        return Reply(ASK_BACK, None, [SHOW], ASK_BACK)
    if question.code and _JUDGE.search(question.prose):
        return _clean_code(shape, cases, fit)
    return _from_case(cases, shape, text)


@dataclass(frozen=True, slots=True)
class _Fit:
    """What the question says, for actions that it rules out or already names as done."""

    words: list[str]
    text: str

    def of(self, actions: Iterable[Action]) -> list[Action]:
        return [a for a in actions if a.fits(self.words, self.text)][:_MOST]


def _filled(text: str, read: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda m: read.get(m[1], "the value"), text)


def _from_claims(chosen: list[Chosen], shape: Shape, fit: _Fit, run: str) -> Reply:
    first = chosen[0]
    says = " ".join(_filled(c.claim.says, c.read) for c in chosen)
    actions = fit.of(a for c in chosen for a in c.claim.actions)
    actions = [
        replace(
            a,
            do=_filled(a.do, first.read),
            code=_filled(a.code, first.read) if first.told else a.code,
        )
        for a in actions
    ]
    if run:
        says = f"Nothing wrong was found in the run in {run}. {says}"
        actions = [_looked_up(a, run) for a in actions]
    return Reply(
        _short(says),
        shape.verdict(first.claim.verdict, first.claim.turns),
        actions,
        first.claim.clarify or None,
        [c.claim.id for c in chosen],
        tuple(dict.fromkeys(name for c in chosen for name in c.claim.backs)),
    )


def _looked_up(action: Action, run: str) -> Action:
    """What a watched run has recorded already is in its report."""
    if "fallline run" not in f"{action.do} {action.code}":
        return action
    return Action(f"`fallline report {run}` shows what it recorded.")


def _short(says: str) -> str:
    return " ".join(_SENTENCE.split(says)[:4])


def _from_findings(
    question: Question, evidence: Gathered, shape: Shape, chosen: list[Chosen], fit: _Fit
) -> Reply:
    """The mistakes that are there, worst first, and what to write instead."""
    found = evidence.serious
    worst = found[0]
    says = f"Line {worst.at.line}: {worst.message} ({worst.code})"
    extra = [c for c in chosen if worst.code in c.claim.rules]
    if extra:
        says = f"{says} {_SENTENCE.split(_filled(extra[0].claim.says, extra[0].read))[0]}"
    verdict = None
    if shape.decides:
        verdict = shape.verdict(extra[0].claim.verdict, extra[0].claim.turns) if extra else None
        verdict = verdict or ("yes" if shape.turned else "no")
    actions = [_instead(worst, evidence)]
    actions += [_other(f) for f in _distinct(found[1:], worst.code)][: _MOST - 1]
    if evidence.diff:
        actions[0].see = _left(evidence.remaining)
    if extra and len(actions) < _MOST:
        actions += fit.of(extra[0].claim.actions)
    backs = tuple(
        dict.fromkeys([*(f.code for f in found), *(extra[0].claim.backs if extra else ())])
    )
    return Reply(says, verdict, actions[:_MOST], None, [c.claim.id for c in extra], backs)


def _distinct(found: Sequence[Finding], first: str) -> list[Finding]:
    """One finding of each rule: the same mistake twice is one thing to mend."""
    return list({f.code: f for f in reversed(found) if f.code != first}.values())[::-1]


def _instead(finding: Finding, evidence: Gathered) -> Action:
    from fallline.rules import (
        rule_by_code,  # only where there is a finding: all rules take a while to load
    )

    rule = rule_by_code(finding.code)
    advice = rule.instead if rule is not None else ""
    code = _FENCE.search(advice)
    words = " ".join(_FENCE.sub(" ", advice).split()).split(" - ")[0].rstrip(": ")
    first = _SENTENCE.split(words)[0].rstrip(":")
    return Action(
        first + ("" if first.endswith((".", ")")) else "."),
        code=evidence.diff or (code[1].rstrip() if code else ""),
        proof={"diff": "yes"} if evidence.diff else {},
    )


def _other(finding: Finding) -> Action:
    return Action(f"Line {finding.at.line}: {_SENTENCE.split(finding.message)[0]} ({finding.code})")


def _left(remaining: Sequence[Finding]) -> str:
    if not remaining:
        return "read again with these changes, the code has no findings left."
    rest = ", ".join(f"{f.code} at line {f.at.line}" for f in remaining[:_MOST])
    return f"read again with these changes, {rest} remain."


def _healthy(chosen: list[Chosen], fit: _Fit) -> Reply:
    """The loss falls and nothing fails: leave it alone, and say what the number that worries them means."""
    says = "The loss is falling, so the model is learning. Change nothing."
    about = chosen[0].claim if chosen else None
    if about is None:
        says += " Keep an eye on the loss and on the share of clipped updates."
        return Reply(says)
    says = _short(f"{says} {_filled(about.says, chosen[0].read)}")
    return Reply(says, None, fit.of(about.actions), None, [about.id], about.backs)


def _clean_run(run: str) -> Reply:
    return Reply(
        f"Nothing wrong was found in the run in {run}.",
        None,
        [Action(f"`fallline report {run}` shows its curves.")],
        "What did you expect it to do, and what does it do?",
    )


def _clean_code(shape: Shape, cases: Sequence[Case], fit: _Fit) -> Reply:
    return Reply(
        "fallline finds no mistake in this code. What it cannot see in it, a watched run shows.",
        "yes" if shape.decides and not shape.turned else "no" if shape.decides else None,
        [
            Action(
                "Watch the run:",
                code="fallline run train.py",
                see="it names the first number that goes wrong, with its line.",
            )
        ],
    )


def _from_case(cases: Sequence[Case], shape: Shape, text: str) -> Reply:
    """No claim knows the question: what its case knows, what to measure first, and the fix that comes first."""
    case = cases[0]
    asked = {word[:5] for word in tokens(text)}

    def near(said: str) -> int:
        return len({word[:5] for word in tokens(said) if len(word) > 3} & asked)

    knows = sorted(case.knows, key=lambda s: -near(s.text))[:2]
    measure = case.measure[0]
    actions = [
        Action(
            "Measure first:" if "\n" in measure.run else f"Measure first: `{measure.run}`",
            code=measure.run if "\n" in measure.run else "",
            see=measure.tells,
        )
    ]
    fixes = sorted(case.fix, key=lambda f: -near(f"{f.title} {f.when}"))[: _MOST - 1]
    actions += [Action(f"{fix.title}.", fix.when, fix.code) for fix in fixes]
    backs = tuple(dict.fromkeys(name for s in knows for name in s.backs))
    return Reply(" ".join(s.text for s in knows), None, actions, None, [], backs)
