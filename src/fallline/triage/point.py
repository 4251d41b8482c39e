"""What pasted code does at the place that the question is about, said in the names of that code (`points/*.md`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fallline.triage.claim import Claim, points
from fallline.triage.pasted import in_words, pieces
from fallline.triage.pattern import Bound, find, words_of
from fallline.triage.words import Said, spelled, tokens

__all__ = ["Point", "point_at"]

_LONGEST = 110  # characters of code that are quoted
_MEANING = re.compile(
    r"\b(?:why|what (?:does|do|is|are)|what's|purpose|necessary|needed|need (?:of|for|to add)|(?:do|does|should) (?:i|we|you|it) (?:really )?need|confus\w*|wonder\w*|understand|explain|mean(?:s|ing)?|should|is it (?:ok|right|correct)|remove\w*)\b"
)
_WHERE = re.compile(r"([A-Z]) (!?)~ (.*)")


@dataclass(frozen=True, slots=True)
class Point:
    """A place in the code of a question, what it does, and the names that it does it with."""

    claim: Claim
    read: dict[str, str]
    line: int
    meant: bool = False  # the question asks what a line is for

    @property
    def asked(self) -> bool:
        """Whether the question names it; otherwise it is a mistake that the code alone shows."""
        return self.claim.asked is not None


def point_at(text: str, prose: str, read: str) -> Point | None:
    """What the code of a question does at the place that is asked about; without such a place, the first mistake that is known by its shape. The points are in order: the particular before the general."""
    tree = pieces(text, read)
    if not tree.body:
        return None
    held = set(re.findall(r"[A-Za-z_]\w{2,}", ast.unparse(tree)))
    prose = in_words(prose)
    words = spelled(tokens(prose))
    seen = [point for claim in points() if (point := _seen(claim, tree, held, words, prose))]
    # who asks what a line is for is told that; who says that something goes wrong is told what does
    asked = _MEANING.search(prose) is not None
    first = next((p for p in seen if p.asked is asked), next(iter(seen), None))
    return first and replace(first, meant=asked)


def _seen(claim: Claim, tree: ast.Module, held: set[str], words: Said, prose: str) -> Point | None:
    if claim.asked is not None and not claim.asked.holds(words, prose):
        return None
    for pattern in claim.sees:
        if words_of(pattern) <= held:
            for node, bound in sorted(find(pattern, tree), key=_place):
                if (whole := _with_the_rest(claim, tree, bound)) is not None:
                    read = {letter: quoted(what) for letter, what in whole.items()}
                    statement = _statement_of(node, tree)
                    return Point(
                        claim,
                        {**read, "it": quoted(node), "line": quoted(statement)},
                        getattr(node, "lineno", 0),
                    )
    return None


def _place(found: tuple[ast.AST, Bound]) -> tuple[int, int]:
    node = found[0]
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _with_the_rest(claim: Claim, tree: ast.Module, bound: Bound) -> Bound | None:
    """What all letters stand for where the code has the rest of the shape too."""
    for whole in _all(claim.also, tree, bound):
        nowhere = all(next(find(p, tree, whole), None) is None for p in claim.without)
        if nowhere and all(_reads(test, whole) for test in claim.where):
            return whole
    return None


def _all(patterns: list[str], tree: ast.Module, bound: Bound) -> Iterator[Bound]:
    if not patterns:
        yield bound
        return
    for _, more in find(patterns[0], tree, bound):
        yield from _all(patterns[1:], tree, more)


def _reads(test: str, bound: Bound) -> bool:
    match = _WHERE.fullmatch(test)
    assert match is not None, test
    letter, negated, words = match.groups()
    if letter not in bound:
        return True  # another spelling of the shape has no such part
    found = re.search(words, quoted(bound[letter]), re.I) is not None
    return found is not bool(negated)


def _statement_of(node: ast.AST, tree: ast.Module) -> ast.AST:
    """The smallest statement that holds a node, or its head where it has a body."""
    holds = [s for s in ast.walk(tree) if isinstance(s, ast.stmt) and node in ast.walk(s)]
    return holds[-1] if holds else node


def quoted(node: ast.AST) -> str:
    """A piece of code on one line, shortened where it is long."""
    text = ast.unparse(node).partition("\n")[0]
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."
