"""Is my code right? What was asked about, which findings are about it, and what to say when there are none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fallline.finding import Finding
from fallline.triage.gathered import Gathered
from fallline.triage.playbook import Statement
from fallline.triage.shape import Shape
from fallline.triage.words import root, tokens

__all__ = ["answers", "asked_first", "clean", "nothing_about", "only_code_tells", "speaks_of"]

# what people ask about: a word of the question, what to call it, and what its code holds
_TOPICS = (
    ("clip", "clipping", "clip"),
    ("unscal", "`unscale_`", "unscale_"),
    ("accumul", "gradient accumulation", ""),
    ("zero", "`zero_grad`", "zero_grad"),
    ("schedul", "the scheduler", "sched|lr_"),
    ("scaler", "the GradScaler", "scaler"),
    ("autocast", "autocast", "autocast"),
    ("softmax", "softmax", "softmax"),
    ("dropout", "dropout", "dropout"),
)
_SHORT = 9  # words in which no code can be described
_MOSTLY = 0.6  # of the words that a text must use to be about a question
_SAME = 5  # letters that make two roots the same word: accumulate, accumulation
_GENERAL = frozenset(
    "a an the is are am was be do does did i my me we our you your it its this that there to of in on at for from and or but if so as by with have has had "
    "can should would will not no how what why right correct correctly ok okay fine good wrong wrongly broken place position order spot code loop script file training train "
    "anything something look looks doing done use using mistake mistakes bug bugs problem problems error errors properly place placed here please check review still "
    "step steps gradient gradients grad update updates loss model batch implementation logic thing set up setup way".split()
)


def _keys(text: str) -> set[str]:
    return {root(w)[:_SAME] for w in tokens(text) if w not in _GENERAL and len(w) > 2}


def _topics(prose: str) -> list[tuple[str, str]]:
    words = tokens(prose)
    return [
        (label, code) for begin, label, code in _TOPICS if any(w.startswith(begin) for w in words)
    ]


def asked_first(prose: str, found: Sequence[Finding], shape: Shape) -> tuple[list[Finding], bool]:
    """The findings, those about what was asked first; and whether any is. A question about all of the code is about each."""
    keys = _keys(prose)
    if not shape.mine or not keys:
        return list(found), True
    near = {id(f): _near(f, keys) for f in found}
    about = any(near.values()) or not _topics(prose)
    return sorted(found, key=lambda f: -near[id(f)]), about


def _near(finding: Finding, keys: set[str]) -> int:
    from fallline.rules import (
        rule_by_code,  # only where there is a finding: all rules take a while to load
    )

    rule = rule_by_code(finding.code)
    own = f"{rule.name} {rule.instead}" if rule is not None else ""
    return len(keys & _keys(f"{finding.message} {own}"))


def answers(question: str, knows: Sequence[Statement]) -> bool:
    """Whether the statements speak of most of what a question names."""
    keys = _keys(question)
    return not keys or 2 * len(keys & _keys(" ".join(s.text for s in knows))) > len(keys)


def speaks_of(question: str, texts: Iterable[str]) -> bool:
    """Whether texts use most of the words of a question, or of its title."""
    told = _keys(" ".join(texts))
    asked = (_keys(question.strip().partition("\n")[0]), _keys(question))
    return any(keys and _MOSTLY * len(keys) <= len(keys & told) for keys in asked)


def only_code_tells(prose: str, shape: Shape) -> bool:
    """Whether a short question asks for a judgement on code and describes none of it."""
    return shape.mine and bool(_topics(prose)) and len(tokens(prose)) <= _SHORT


def nothing_about(prose: str, name: str) -> str:
    topics = _topics(prose)
    return f"Nothing wrong with {topics[0][0]} was found in {name}."


def clean(prose: str, evidence: Gathered) -> tuple[str, bool]:
    """What to say of code without findings, and whether what was asked about is in it at all."""
    name, code = evidence.name, "\n".join(evidence.read.values())
    topics = _topics(prose)
    missing = [label for label, sign in topics if sign and not re.search(sign, code, re.I)]
    if missing:
        return (
            f"{name[:1].upper() if name == 'this code' else name[:1]}{name[1:]} holds no {missing[0].removeprefix('the ')} that the reader can see, so there is nothing to judge. Nothing else wrong was found in it.",
            False,
        )
    about = f" about {' and '.join(label for label, _ in topics)}" if topics else ""
    return f"As far as the reader sees: nothing wrong was found in {name}{about}.", True
