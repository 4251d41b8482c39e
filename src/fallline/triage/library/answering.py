"""The paragraph of the installed libraries' documentation that answers a question, found by the names in it and by its words; and the one or two sentences of it to quote."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from fallline.triage.library.documented import names_in
from fallline.triage.library.installed import named_in
from fallline.triage.library.passages import Passage, passages
from fallline.triage.words import root, tokens

__all__ = ["Told", "told_of"]

_FORM = frozenset(
    "a an the is are was were be been do does did done i my me we our you your it its this that these those to of in on at for from and or but if so as by with have has had can could should would will "
    "may might must not no how what why where when which who there here then than just please pls hi hello hey help need want get got too very also any some all more most other about into out up use using used "
    "question questions way work works make makes mean means meaning does purpose correct correctly right properly possible support supported exactly anyone know find difference between example examples "
    "torch pytorch transformers lightning pl accelerate peft trl huggingface hugging face version code function class method argument parameter option documentation docs doc".split()
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\"(])")
_POINTS = re.compile(
    r"(?i)(?:see|read more|for more|refer to|please refer|check|note that see|default:)\b"
)
_OTHER_NAME = 0.5  # what it counts that a paragraph names another name of the question
_ITSELF = (
    0.15  # and that it is of the argument itself, or of the function, and not of another argument
)
_MORE = 0.3  # and as how large a share of the question it counts
_ENOUGH = 0.45  # the share of what is asked beside the names that a paragraph must speak of
_FEWEST = 2  # words that they must share, beside the names
_RARE = 9.0  # the weight of a word that no documentation has
_QUOTED, _LONGEST = 2, 420  # sentences that are quoted, and their characters


class Told(NamedTuple):
    """A paragraph about a name of the question, the sentences of it that are nearest to what is asked, and whether they answer it."""

    passage: Passage
    says: str
    answers: bool


def told_of(asked: str, around: str) -> Told | None:
    """What the documentation of a name says to a question that names it. `around` names the library, where the question does not."""
    names = names_in(asked)
    if not names:
        return None
    table = passages()
    places = {name: array("I", table.named.get(name.lower(), b"")) for name in names}
    own = {root(w) for name in names for w in tokens(name)}
    words = {root(w) for w in tokens(asked) if w not in _FORM and len(w) > 1} - own
    if len(words) < _FEWEST:
        return None
    weight = {w: table.weight.get(w, _RARE) for w in words}
    libraries = set(named_in(asked) or named_in(around))
    found = [
        (_rank(table.passage(n), name, names, weight), n)
        for name, where in places.items()
        for n in where
        if not libraries or table.rows[n][0] in libraries | {"torch"}
    ]
    if not found:
        return None
    (_, share, shared), n = max(found)
    passage = table.passage(n)
    says = _quoted(passage.says, names, weight)
    if shared < _FEWEST or not says:
        return None
    return Told(passage, says, share >= _ENOUGH)


def _rank(
    passage: Passage, name: str, names: Sequence[str], weight: dict[str, float]
) -> tuple[float, float, int]:
    """How well a paragraph answers; the share of the question, by weight, that it speaks of, and how many of its words."""
    said = {root(t) for t in tokens(passage.says)}
    shared = weight.keys() & said
    share = sum(weight[w] for w in shared) / sum(weight.values())
    others = sum(other != name and other in passage.says for other in names)
    itself = passage.name.lower() == name.lower()
    return (
        share + _OTHER_NAME * others + _ITSELF * itself,
        share + _MORE * others,
        len(shared) + _FEWEST * others,
    )


def _quoted(says: str, names: Sequence[str], weight: dict[str, float]) -> str:
    """The sentence of a paragraph that speaks most of what is asked, with the one after it where there is room."""
    sentences = [s for s in _SENTENCE.split(says) if not _POINTS.match(s)]
    if not sentences:
        return ""

    def near(n: int) -> float:
        others = sum(name in sentences[n] for name in names)
        return others * _RARE + sum(
            weight.get(w, 0.0) for w in {root(t) for t in tokens(sentences[n])}
        )

    first = max(range(len(sentences)), key=near)
    quoted = sentences[first : first + _QUOTED]
    while len(quoted) > 1 and len(" ".join(quoted)) > _LONGEST:
        quoted.pop()
    return " ".join(quoted)
