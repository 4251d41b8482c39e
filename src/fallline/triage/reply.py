"""The reply: one to three sentences that answer the question, and at most three things to do, in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from fallline.triage.arithmetic import reckoned
from fallline.triage.asked import Asked
from fallline.triage.causes import causes_in
from fallline.triage.choose import Chosen, choose
from fallline.triage.claim import Action
from fallline.triage.done import done_in
from fallline.triage.explain import beside_the_point, from_causes, noted, to_the_point, with_causes
from fallline.triage.filled import SENTENCE, filled, shortened
from fallline.triage.fit import MOST, Fit, verdict_of
from fallline.triage.frame import Frame, at_home, framed
from fallline.triage.gathered import Gathered
from fallline.triage.honest import (
    ASK_BACK,
    NARROW,
    NOT_OURS,
    PERHAPS_OURS,
    READ,
    SHOW,
    Reply,
    known_of_it,
    unknown,
)
from fallline.triage.judge import (
    asks_of_own,
    clean,
    looked_at,
    only_code_tells,
    run_tells,
)
from fallline.triage.library import names_in
from fallline.triage.mended import distinct, from_findings, other
from fallline.triage.messages import last_error
from fallline.triage.numbers import shown
from fallline.triage.playbook import Case
from fallline.triage.point import Point, point_at
from fallline.triage.post import Post
from fallline.triage.recognise import Question
from fallline.triage.seen import seen_in_code
from fallline.triage.several import Part, each_question, headed, hidden
from fallline.triage.shape import Shape
from fallline.triage.silent import SHOW_CODE, silent
from fallline.triage.sourced import (
    from_documentation,
    from_message,
    from_names,
    named_at_all,
    pasted_message,
    wanted_of,
)
from fallline.triage.symptoms import symptoms
from fallline.triage.words import foreign, other_framework, scope, spelled, tokens, vague

__all__ = ["Reply", "compose"]

_SURE = 1.35  # with less, a claim says nothing of a message that it does not know, nor of code that was cut off
_REPEATED = 30  # characters of a title that is found again in the text
_KNOWN = 1.5  # a question this much like one of ours is ours, whatever its other words are
_ASKED = 2.2  # a question this much like one of a claim is answered by it, not by the documentation of a name
_MOST_OF_IT = 0.5  # a claim that speaks of less does not answer a message that a library has
_OF_IT = 0.6  # so is one of which a claim speaks this much
_OTHER = {"yes": "No", "no": "Yes"}


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
    raw = _once(
        Post.of(text).evidence
    )  # with the names of specialists, which are words of messages too
    words = spelled(tokens(raw))
    shape = Shape.of(question.prose)
    pasted = "" if evidence.files else "\n".join(evidence.read.values()) or question.code
    looked = looked_at(question.prose, evidence, run)
    fit = Fit(words, raw.lower(), done_in(question.prose, question.code))
    facts = {**shown(raw), **dict.fromkeys(fit.done.facts, "")}
    # a long post names signs of all kinds; what is asked is about those that it is asked with
    asked = Asked.of(Post.of(text).prose)
    around = f"{question.code}\n{Post.of(text).repositories}"
    frame = framed(question.prose, around)._replace(signs=framed(asked.text).signs)
    evidence = evidence if run else noted(evidence, question.prose, facts)
    aside = not run and beside_the_point(evidence.serious, question.prose, facts)
    codes = [] if aside else [f.code for f in evidence.serious]
    choice = choose(raw, question.prose, words, codes, specialists, seen_in_code(pasted), facts, fit.exhausted, bool(looked), frame, Post.of(text).last_traceback)  # fmt: skip
    chosen = choice.best
    beside = [c for c in chosen[1:] if c.seen]
    chosen = [c for c in chosen if c not in beside]
    if not (chosen or looked or run or evidence.serious):
        chosen = hidden(Post.of(text), specialists)
    parts = [] if run or evidence.serious else each_question(chosen, Post.of(text), specialists)
    told = bool(chosen and chosen[0].told)
    sum_ = None if told else reckoned(question.text)
    said = None if told else pasted_message(raw)
    sourced = from_message(said, raw) if said is not None else None
    certain = bool(chosen and _certain(chosen[0], question.text))
    known = told or sum_ is not None or sourced is not None or certain
    ours = (
        bool(cases)
        or known
        or at_home(frame)
        or (scope(question.text) >= 1.0 and not foreign(question.text))
    )
    trains = _trains(question.text, evidence) or bool(evidence.findings or run)
    if chosen and chosen[0].claim.border and not trains:
        return Reply(chosen[0].claim.says, claims=[chosen[0].claim.id], ours=False)
    point = None if evidence.files else point_at(raw, question.prose, pasted)
    if told and (
        point is None or not (point.asked and point.meant) or "traceback" in Post.of(text).kinds
    ):
        point = None  # a message that is only mentioned yields to the line that is asked about
    strange = other_framework(question.text) or not (ours or point)
    if strange and not trains:
        elsewhere = other_framework(question.text) or scope(question.text) < 0.0
        if not elsewhere and (named := _of_names(raw, chosen, asked, frame)) is not None:
            return named  # an argument of a library that is documented here
        if vague(words):
            return Reply(ASK_BACK, None, [SHOW], ASK_BACK)
        near = scope(question.text) > 0.0 and not other_framework(question.text)
        return Reply(f"{NOT_OURS} {PERHAPS_OURS}" if near else NOT_OURS, ours=False)
    code = "\n".join(evidence.files.values()) if len(evidence.files) == 1 else pasted
    causes = causes_in(code, question.prose, facts, raw)
    errors = [c for c in causes if c.of_an_error]
    if any(cause.likely for cause in errors):
        return from_causes(errors, [other(f) for f in distinct(evidence.serious, "")])
    if point is not None and not (
        evidence.serious
        and not aside
        and (shape.mine or _found_there(point, evidence) or symptoms(question.prose))
    ):
        return _from_point(point, evidence, shape, fit, chosen[:1] if told else [])
    causes = errors if told else causes
    likely = any(cause.likely for cause in causes)
    if evidence.serious and not told and not (aside and (likely or chosen)):
        found = from_findings(question, evidence, shape, chosen, beside, fit, run)
        return with_causes(found, causes)
    if chosen and chosen[0].seen:
        return _from_claims(chosen[:1], shape, fit, run, looked)
    if likely and not told:
        apt = to_the_point(evidence.serious, question.prose, facts)
        return from_causes(causes, [other(f) for f in distinct(apt, "")])
    if sourced is not None and not (chosen and _of_this(chosen[0])):
        return Reply(sourced.says, None, sourced.actions)
    only_code = bool(evidence.read) and not question.prose.strip()
    own = shape.mine or (bool(looked) and asks_of_own(question.prose, shape))
    if own and run and not evidence.read and not told:
        judged = run_tells(question.prose, evidence)
        return _clean_run(looked, shape.judged(wrong=False) if judged else None, run)
    if (own or only_code) and evidence.read and not told:
        if not evidence.cut:
            return _clean_code(question.prose, evidence, shape, run)
        if only_code or not chosen or chosen[0].score < _SURE:
            return with_causes(silent(question.prose, pasted), causes)
    if not (told or run or evidence.findings) and only_code_tells(question.prose, shape):
        return Reply(f"Only the code can tell. {SHOW_CODE}", None, [READ], SHOW_CODE)
    if healthy and not told:
        return _healthy(chosen, fit)
    if sum_ is not None:
        return Reply(sum_.says, sum_.verdict if shape.decides else None, sum_.actions)
    told = told or any(re.search(e, raw, re.I) for case in cases for e in case.errors)
    message = None if told else last_error(raw)
    if message is not None and (not chosen or chosen[0].score < _SURE):
        return unknown(message)
    if not told and message is None and (named := _of_names(raw, chosen, asked, frame)) is not None:
        return named
    if parts:
        return with_causes(_from_parts(parts, fit), causes)
    if chosen:
        given = _of_the_log(_from_claims(chosen, shape, fit, run, looked), chosen[0], facts)
        costs = told or beside_the_point(evidence.findings, question.prose, facts)
        return with_causes(given if costs else _with_notes(given, evidence), causes)
    if run:
        return _clean_run(looked, None, run)
    if not told and (printed := from_message(raw.strip().partition("\n")[0], raw)) is not None:
        return Reply(printed.says, None, printed.actions)  # a line of a log without a class
    if evidence.read and not evidence.files and not evidence.findings:
        return with_causes(silent(question.prose, pasted), causes)
    reply = known_of_it(cases, bool(evidence.findings), text, told, choice.nearest, frame)
    reply.says = f"{looked} {reply.says}".strip()
    if reply.clarify == NARROW:
        of_it = from_documentation(asked, raw, certain=False) or named_at_all(raw, raw)
        reply.says = f"{reply.says} {of_it.says}" if of_it is not None else reply.says
    return reply


def _once(text: str) -> str:
    """The text without a title that only repeats how a message in it begins."""
    title, _, rest = text.partition("\n")
    return rest if len(title) > _REPEATED and title.strip() in rest else text


def _found_there(point: Point, evidence: Gathered) -> bool:
    """Whether the reader reports that very place, or the question does not ask what the point is for: then the finding says more."""
    meant = point.asked and point.meant
    return not meant or any(f.at.line == point.line for f in evidence.serious)


def _from_point(
    point: Point, evidence: Gathered, shape: Shape, fit: Fit, message: list[Chosen]
) -> Reply:
    """What the code does at the place that was asked about, after what the message beside it means, and what the reader found elsewhere in it."""
    means = [SENTENCE.split(filled(c.claim.says, c.read))[0] for c in message]
    actions = [replace(a, do=filled(a.do, point.read)) for a in fit.of(point.claim)] + [
        other(f) for f in distinct(evidence.serious or evidence.findings, "")
    ]
    return Reply(
        " ".join([*means, filled(point.claim.says, point.read)]),
        None if point.asked else shape.judged(wrong=True),
        actions[:MOST],
        None,
        [point.claim.id],
        point.claim.backs,
    )


def _of_this(first: Chosen) -> bool:
    """Whether a claim that was not told by the message speaks of most of the question all the same."""
    return first.whole and first.score >= _SURE and first.speaks >= _MOST_OF_IT


def _of_names(raw: str, chosen: list[Chosen], asked: Asked, frame: Frame) -> Reply | None:
    """What the libraries document of a name that was asked about, where no claim speaks of it, or where the question is what it means."""
    wanted = wanted_of(raw)
    if wanted is not None and wanted.what:
        if any(c.claim.mentions(wanted.names) and c.score > _ASKED for c in chosen):
            return None
        found = from_names(wanted, raw)
    elif frame.signs or any(c.claim.mentions(names_in(asked.text)) for c in chosen):
        return None  # who says what goes wrong does not ask for the documentation
    else:
        found = from_documentation(asked, raw, certain=True)
    if found is None:
        return None
    near = [
        s
        for c in chosen[:1]
        for s in SENTENCE.split(filled(c.claim.says, c.read))
        if any(name in s for name in found.names)
    ]
    return Reply(" ".join([found.says, *near[:1]]))


def _trains(text: str, evidence: Gathered) -> bool:
    """Whether the code that came along is of a training in torch: pasted code of another library makes no question ours."""
    read = "\n".join(evidence.read.values())
    return bool(read) and not other_framework(f"{text}\n{read}") and scope(read) > 0.0


def _certain(first: Chosen, text: str) -> bool:
    """Whether a claim fits so well that the question is ours, whatever its other words are."""
    spoken = first.whole and first.speaks >= _OF_IT and scope(text) >= 0.0
    return first.score >= _KNOWN or spoken


def _from_claims(chosen: list[Chosen], shape: Shape, fit: Fit, run: str, looked: str) -> Reply:
    first = chosen[0]
    verdict = verdict_of(shape, first.claim, first.seen)
    says = " ".join(filled(c.claim.says, c.read) for c in chosen)
    if shape.open or verdict in _OTHER:
        says = _without(says, _OTHER.get(verdict or "", "Yes|No"))
    actions = fit.of(*(c.claim for c in chosen))
    repeated = fit.left_out(c.claim for c in chosen)
    actions = [
        replace(
            a,
            do=filled(a.do, first.read),
            see=filled(a.see, first.read),
            code=filled(a.code, first.read) if first.told else a.code,
        )
        for a in actions
    ]
    if looked and not first.told:
        says = f"{looked} In general: {says}"
    if run:
        actions = [_looked_up(a, run) for a in actions]
    return Reply(
        shortened(says) + _left_out(repeated),
        verdict,
        actions,
        first.claim.clarify or None,
        [c.claim.id for c in chosen],
        tuple(dict.fromkeys(name for c in chosen for name in c.claim.backs)),
    )


def _from_parts(parts: list[Part], fit: Fit) -> Reply:
    """A short answer to each question, with its yes or no, and what to do first for each."""
    said, claims = [], [part.chosen.claim for part in parts]
    for question, chosen in parts:
        shape = Shape.of(question)
        verdict = verdict_of(shape, chosen.claim)
        says = filled(chosen.claim.says, chosen.read)
        if shape.open or verdict in _OTHER:
            says = _without(says, _OTHER.get(verdict or "", "Yes|No"))
        said.append(headed(question, Reply(says, verdict).answer))
    actions = [action for claim in claims for action in fit.of(claim)[:1]]
    backs = dict.fromkeys(name for claim in claims for name in claim.backs)
    return Reply("\n".join(said), None, actions[:MOST], None, [c.id for c in claims], tuple(backs))


def _without(says: str, word: str) -> str:
    """An answer without the yes or no that it begins with: it was written for a question that is asked the other way round, or that wants none."""
    rest = re.sub(rf"^(?:{word})(?:, (?:that is \w+: )?|: )(?=\w)", "", says)
    return rest[:1].upper() + rest[1:] if rest != says else says


def _left_out(labels: Sequence[str]) -> str:
    """That something is not recommended because it was tried."""
    if not labels:
        return ""
    named = " and ".join(filter(None, [", ".join(labels[:-1]), labels[-1]]))
    return f" You already have {named}, so that is left out below."


def _with_notes(reply: Reply, evidence: Gathered) -> Reply:
    """The reply, and before its advice what the reader noted in the code that is not a mistake (a wait for the GPU)."""
    notes = [other(f) for f in distinct(evidence.findings, "")][:1]
    reply.actions = [*notes, *reply.actions][:MOST]
    return reply


def _of_the_log(reply: Reply, first: Chosen, facts: dict[str, str]) -> Reply:
    """The reply, and before it what the pasted log shows, where that led to the claim."""
    fact = first.logged
    if fact is None and "NaN" in reply.says and not first.told:
        fact = "loss nan"  # who asks about a NaN is told where it begins
    if fact is not None and facts.get(fact):
        reply.says = shortened(f"{facts[fact]} {reply.says}")
    return reply


def _looked_up(action: Action, run: str) -> Action:
    """What a watched run has recorded already is in its report."""
    if "fallline run" not in f"{action.do} {action.code}":
        return action
    return Action(f"`fallline report {run}` shows what it recorded.")


def _healthy(chosen: list[Chosen], fit: Fit) -> Reply:
    """The loss falls and nothing fails: leave it alone, and say what the number that worries them means."""
    says = "The loss is falling, so the model is learning. Change nothing."
    about = chosen[0].claim if chosen else None
    if about is None:
        says += " Keep an eye on the loss and on the share of clipped updates."
        return Reply(says)
    says = shortened(f"{says} {filled(about.says, chosen[0].read)}")
    return Reply(says, None, fit.of(about), None, [about.id], about.backs)


def _clean_run(looked: str, verdict: str | None, run: str) -> Reply:
    return Reply(
        looked,
        verdict,
        [Action(f"`fallline report {run}` shows its curves.")],
        "What did you expect it to do, and what does it do?",
    )


def _clean_code(prose: str, evidence: Gathered, shape: Shape, run: str) -> Reply:
    """Nothing was found in the code: say so of what was asked, and prescribe nothing."""
    says, there = clean(prose, evidence, run)
    watch = Action(
        "What the code alone does not show, a watched run does:",
        code=f"fallline run {evidence.name if evidence.name.endswith('.py') else 'train.py'}",
        proof={"bash": "yes"},
    )
    return Reply(says, shape.judged(wrong=False) if there else None, [] if run else [watch])
