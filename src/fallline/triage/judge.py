"""Is my code right? What was asked about, which findings are about it, and what to say when there are none."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from fallline.finding import Finding
from fallline.rules import rule_by_code
from fallline.syntax.nodes import below
from fallline.triage.gathered import Gathered
from fallline.triage.playbook import Statement
from fallline.triage.shape import Shape
from fallline.triage.words import root, tokens

__all__ = [
    "answers",
    "asked_first",
    "asks_of_own",
    "clean",
    "looked_at",
    "nothing_about",
    "only_code_tells",
    "run_tells",
    "speaks_of",
]

# what people ask about: a word of the question, what to call it, and what its code holds
_TOPICS = (
    ("clip", "clipping", "clip|max_grad_norm"),
    ("unscal", "`unscale_`", "unscale_"),
    ("accumul", "gradient accumulation", ""),
    ("zero", "`zero_grad`", "zero_grad"),
    ("schedul", "the scheduler", "sched|lr_"),
    ("scaler", "the GradScaler", "scaler"),
    ("autocast", "autocast", "autocast"),
    ("softmax", "softmax", "softmax"),
    ("dropout", "dropout", "dropout"),
    ("resum", "resuming", "load_state_dict|load_checkpoint|resume"),
)
# what a watched run measured: words of the question, and the names of the numbers
_MEASURED = (
    (("clip", "norm", "gradient", "explod", "vanish"), "gradient norm"),
    (("lr", "rate", "schedul", "warmup"), "learning rate"),
    (("loss", "converg", "learn", "diverg", "nan"), "loss"),
    (("scaler", "scale", "scaling"), "loss scale"),
    (("memory", "oom"), "memory"),
    (("slow", "fast", "time", "speed", "throughput", "bottleneck"), "time per update"),
    (("update", "step", "skip"), "updates"),
)
_OWN = re.compile(r"(?i)\b(?:my|our|this)\b")
_CALLS = 3  # calls that are named with their lines
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


def asks_of_own(prose: str, shape: Shape) -> bool:
    """Whether a question is about a topic of the asker's own program: only that program, or its run, answers it."""
    of_topic = shape.decides and bool(_topics(prose)) and _OWN.search(shape.sentence) is not None
    return shape.mine or of_topic


def looked_at(prose: str, evidence: Gathered, run: str) -> str:
    """That nothing is wrong in the whole files and the run that came, and what the run measured of the question; nothing where none came."""
    names = [evidence.name] if evidence.files else []
    names += [f"the run in {run}"] if run else []
    if not names:
        return ""
    measured = _measured_of(prose, evidence.numbers)
    return f"Nothing wrong was found in {' and '.join(names)}. {measured}".rstrip()


def run_tells(prose: str, evidence: Gathered) -> bool:
    """Whether a run can judge what was asked: all of it, or something that it measured."""
    return not _topics(prose) or bool(_asked_numbers(prose, evidence.numbers))


def _asked_numbers(prose: str, numbers: Mapping[str, str]) -> list[str]:
    """The names of the numbers that a question is about."""
    words = tokens(prose)
    asked = [
        name
        for begins, name in _MEASURED
        if name in numbers and any(w.startswith(begins) for w in words)
    ]
    # a learning rate is not about learning
    return [n for n in asked if n != "loss" or "learning rate" not in asked or "loss" in words]


def _measured_of(prose: str, numbers: Mapping[str, str]) -> str:
    """What a watched run measured of what was asked; else how far it came, and its loss."""
    asked = _asked_numbers(prose, numbers) or ["updates", "loss"]
    said = [f"{name} {numbers[name]}" for name in asked if name in numbers]
    return f"It measured: {'; '.join(said)}." if said else ""


def nothing_about(prose: str, evidence: Gathered, run: str) -> str:
    """That what was found is not what was asked about, and what is there of that."""
    label, sign = _topics(prose)[0]
    if not evidence.read:
        measured = _measured_of(prose, evidence.numbers)
        return f"Nothing wrong with {label} was found in the run in {run}. {measured}".rstrip()
    return _in_code(label, sign, evidence)[0]


def clean(prose: str, evidence: Gathered, run: str) -> tuple[str, bool]:
    """What to say of code without findings and of its run, and whether what was asked about is in it at all."""
    says, there = _clean_code(prose, evidence)
    ran = looked_at(prose, Gathered([], numbers=evidence.numbers), run)
    return f"{says} {ran}".rstrip(), there


def _clean_code(prose: str, evidence: Gathered) -> tuple[str, bool]:
    topics = _topics(prose)
    if not topics:
        return f"As far as the reader sees: nothing wrong was found in {evidence.name}.", True
    read = [_in_code(label, sign, evidence) for label, sign in topics]
    missing = [says for says, there in read if not there]
    if missing:
        return f"{missing[0]} Nothing else wrong was found in it.", False
    return " ".join(says for says, _ in read), True


def _in_code(label: str, sign: str, evidence: Gathered) -> tuple[str, bool]:
    """Where the code has what was asked about, and that nothing is wrong with it; and whether it has it at all."""
    name = evidence.name
    if sign and not re.search(sign, "\n".join(evidence.read.values()), re.I):
        named = f"{name[:1].upper() if name == 'this code' else name[:1]}{name[1:]}"
        return (
            f"{named} holds no {label.removeprefix('the ')} that the reader can see, so there is nothing to judge.",
            False,
        )
    places = [p for text in evidence.read.values() for p in (_places(sign, text) if sign else ())]
    if not places:
        return f"As far as the reader sees: nothing wrong was found in {name} about {label}.", True
    more = f" and {len(places) - _CALLS} more" if len(places) > _CALLS else ""
    where = ", ".join(f"`{call}` in line {line}" for call, line in places[:_CALLS])
    return f"{where}{more}: nothing wrong was found in {name} about {label}.", True


def _places(sign: str, text: str) -> list[tuple[str, int]]:
    """The calls in a piece of code whose function or keyword is of a topic, with their lines; none where it does not parse."""
    try:
        tree = ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = []
    for call in below(tree, ast.Call):
        parts = ast.unparse(call.func).split(".")
        named = [parts[-1], ".".join(parts[-2:]), *(f"{k.arg}=" for k in call.keywords if k.arg)]
        found += [(n, call.lineno) for n in named if re.search(sign, n, re.I)][:1]
    return sorted(set(found), key=lambda place: place[1])
