"""Answers from the sources of the installed libraries: who raises a message and when, what an argument means, what a function takes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fallline.triage.asked import Asked
from fallline.triage.claim import Action
from fallline.triage.library import (
    Entry,
    Site,
    Told,
    advice_in,
    documented,
    names_in,
    raised_by,
    refused_keyword,
    told_of,
)

__all__ = [
    "Sourced",
    "from_documentation",
    "from_message",
    "from_names",
    "named_at_all",
    "pasted_message",
    "wanted_of",
]

_MESSAGE = re.compile(
    r"(?m)^.*?\b((?:\w+\.)*[A-Z]\w*(?:Error|Exception|Warning): ?[^\n]{8,}(?:\n(?!\s|Traceback|\[|\w+:)[^\n]{8,}){0,3})"
)
_LINE_OF_LOG = re.compile(r"(?m)^\S*\.py:\d+: (?!.*Warning: )([^\n]{12,})")
_WHAT = re.compile(
    r"(?i)\b(?:what (?:does|do|exactly)|what (?:is|are)(?! the (?:correct|right|best|proper|recommended|easiest|reason|difference in))|what's|whats|meaning of|default|purpose of|explain|difference between|mean(?:s|ing)?|how does)\b"
)
_ABOUT = re.compile(
    r"(?i)^(?:\W*)(?:should|do|does|can|is|are|must|when|why|which|how)\b|\b(?:should i|do i need|necessary|recommended|\w+ vs\.? \w+|deprecated)\b"
)
_TESTS = 2  # conditions that are given: the innermost say why
_NAMES = 2
_SHORT = 25  # words of a sentence that asks of a name
_ITSELF = 10  # and of one that is about the name itself: in a longer one it is only a detail
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True, slots=True)
class Sourced:
    """What the sources say, in sentences, and what follows from it."""

    says: str
    actions: list[Action] = field(default_factory=list)
    names: tuple[str, ...] = ()


def pasted_message(text: str) -> str | None:
    """The last error that was pasted, else the longest warning or a line of a log."""
    found = [m[1] for m in _MESSAGE.finditer(text)]
    errors = [m for m in found if not re.match(r"[\w.]*Warning", m)]
    if errors:
        return errors[-1]
    logged = _LINE_OF_LOG.search(text)
    return max(found, key=len) if found else logged[1] if logged else None


def from_message(message: str, around: str) -> Sourced | None:
    """What raises a message, under which condition, and what it recommends; None where no installed library has it."""
    keyword = _of_keyword(around)
    if keyword is not None:
        return keyword
    site = raised_by(message, around)
    if site is not None and ((site.tests and not site.shared) or site.recommends):
        return Sourced(_place(site), _recommended(site))  # a name alone would answer nothing
    return _of_itself(message, around)


def _of_itself(message: str, around: str) -> Sourced | None:
    """What a warning recommends that no installed library has in these words, and what they document of the argument it names; None for an error, and for one that recommends nothing."""
    warned = re.match(r"[\w.]*?(Deprecat\w*|Future)?Warning", message)
    advice = advice_in(re.sub(r"^[\w.]+Warning: ?", "", message))
    if warned is None or not advice:
        return None
    says = "This is a warning of another version: no installed library has it in these words."
    if warned[1]:
        says += (
            " What it speaks of still works where it is printed, and will not in a later version."
        )
    named = from_names(Wanted(tuple(names_in(message)[:_NAMES]), False), f"{message} {around}")
    says = f"{named.says} {says}" if named is not None else says
    return Sourced(says, [Action(f"Do what the warning says: {advice.rstrip('. ')}.")])


def _place(site: Site) -> str:
    verb = {"warns": "prints this warning", "logs": "prints this", "uses": "has this message"}
    does = verb.get(site.kind, site.kind.replace("raises", "raises this", 1))
    if site.kind.startswith("raises "):
        does = f"raises this {site.kind.removeprefix('raises ')}"
    says = f"`{site.where}` of {site.library} {site.version} {does}"
    tests = [] if site.shared else site.tests[-_TESTS:]
    if tests:
        says += f" when {' and '.join(tests)}"
    says += "."
    values = [
        f"`{name}` is {value}" for name, value in site.values.items() if not value.startswith("`")
    ]
    if values:
        says += f" Here {', '.join(values[:3])}."
    if site.kind == "warns":
        says += " It is a warning: the run continues."
    return says


def _recommended(site: Site) -> list[Action]:
    advice = site.recommends
    return [Action(f"The message itself says what to do: {advice.rstrip('. ')}.")] if advice else []


def _of_keyword(text: str) -> Sourced | None:
    found = refused_keyword(text)
    if found is None:
        return None
    where = f"`{found.function}` of the installed {found.library} {found.version}"
    if found.takes:
        says = f"{where} does take `{found.keyword}`, so the version that raised this is a different one. Compare `pip show {found.library}` there."
        return Sourced(says)
    says = f"{where} has no argument `{found.keyword}`: it was removed or renamed, or belongs to a different function."
    if found.near:
        says += f" Nearest to it are {', '.join(f'`{n}`' for n in found.near)}."
    if found.also:
        says += f" `{found.also[0]}` takes it."
    do = "Pass it under its present name, or to the function that takes it; or install the version that the script was written for."
    return Sourced(says, [Action(do)])


@dataclass(frozen=True, slots=True)
class Wanted:
    """The names that a question is about, and whether it wants to know what they are."""

    names: tuple[str, ...]
    what: bool


def wanted_of(text: str) -> Wanted | None:
    """What a question asks of names of an API: what they mean, or whether and when to use them. None where its sentence with a name asks neither.

    Only its first line counts: further down names are what a story is told with.
    """
    for sentence in _SENTENCE.split(_title(text)):
        names = names_in(sentence)
        if names and len(sentence.split()) <= _SHORT:
            what = _WHAT.search(sentence) is not None
            if what or (_ABOUT.search(sentence) and len(sentence.split()) <= _ITSELF):
                return Wanted(tuple(names[:_NAMES]), what)
    return None


def from_documentation(asked: Asked, around: str, *, certain: bool) -> Sourced | None:
    """What the documentation of a name says to a question that names it: only what answers it, if that is to be `certain`."""
    said = [told for one in (*asked.questions, asked.title) if (told := told_of(one, around))]
    told = next((t for t in said if t.answers), None if certain else next(iter(said), None))
    return None if told is None else Sourced(_quoting(told), [], (told.passage.name,))


def _quoting(told: Told) -> str:
    passage = told.passage
    of = f"`{passage.argument}` of " if passage.argument else ""
    return f"The documentation of {of}`{passage.owner}` ({passage.library} {passage.version}) says: “{told.says}”"


def named_at_all(text: str, around: str) -> Sourced | None:
    """What is documented of the arguments that a title names, whatever it asks of them; a title that tells a story names them in passing."""
    if len(_title(text).split()) > _SHORT:
        return None
    return from_names(Wanted(tuple(names_in(_title(text))[:_NAMES]), False), around)


def _title(text: str) -> str:
    return text.strip().partition("\n")[0]


def from_names(wanted: Wanted, around: str) -> Sourced | None:
    """What the installed libraries document of the names that were asked about; None where they document none.

    Of a class or a function only where the question is what it is: its first sentence answers nothing else.
    """
    entries = [e for name in wanted.names if (e := documented(name, around))]
    entries = [e for e in entries if wanted.what or e.owner]
    if not entries:
        return None
    return Sourced(" ".join(map(_documented, entries)), [], tuple(e.name for e in entries))


def _documented(entry: Entry) -> str:
    of = f"{entry.library} {entry.version}"
    if entry.value:
        kind = f"`{entry.name}` is a value of `{entry.owner}` ({of}"
    elif entry.owner:
        kind = f"`{entry.name}` of `{entry.owner}` ({of}"
    else:
        kind = f"`{entry.module}` ({of}"
    default = f"; default `{entry.default}`" if entry.default is not None else ""
    said = entry.text if entry.text.endswith((".", "…", ")")) else f"{entry.text}."
    return f"{kind}{default}): {said}"
