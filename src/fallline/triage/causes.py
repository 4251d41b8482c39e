"""Which facts of a pasted program can cause what its author complains of, the likeliest first (`points/causes.md`), and which explain the message that it printed (`points/messages.md`).

The reader names mistakes. Much that keeps a model from learning is none by itself: a sigmoid at the end is right for one loss and wrong for another, a rate is high for one optimizer only.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass

from fallline.triage.calls import Facts
from fallline.triage.carried import of_carried
from fallline.triage.claim import Claim, points
from fallline.triage.course import of_course
from fallline.triage.layers import of_layers
from fallline.triage.pasted import as_far_as, pieces
from fallline.triage.program import facts_of
from fallline.triage.sizes import of_sizes
from fallline.triage.symptoms import raised, symptoms
from fallline.triage.words import spelled, tokens

__all__ = ["Cause", "causes_in"]


@dataclass(frozen=True, slots=True)
class Cause:
    """Something in the code that explains a symptom or a message, and what stands for the holes of its text."""

    claim: Claim
    read: dict[str, str]
    of_an_error: bool = (
        False  # it explains a message that a program printed, not only what the asker tells
    )

    @property
    def likely(self) -> bool:
        """Whether it is enough for an answer; otherwise it is one more thing to look at."""
        return not self.claim.weak


def causes_in(code: str, prose: str, shown: Collection[str], text: str = "") -> list[Cause]:
    """The causes that the code holds for what the question complains of and for the message in its whole text, the likely ones first."""
    printed = raised(text)
    complaints = printed | (symptoms(prose, shown) if code else frozenset())
    tree = as_far_as(code) or ast.Module([], [])
    if not complaints or not (tree.body or printed):
        return []
    facts = _facts(tree, text)
    words, low = spelled(tokens(f"{prose}\n{text}")), f"{prose}\n{text}".lower()
    found = [
        Cause(claim, {**facts.get("update whole", {}), **read}, bool(printed & set(claim.explains)))
        for claim in points()
        if complaints & set(claim.explains)
        and (claim.asked is None or claim.asked.holds(words, low))
        and (read := _read(claim, facts)) is not None
    ]
    return sorted(found, key=lambda c: (not c.of_an_error, c.claim.weak))


def _facts(tree: ast.Module, text: str) -> Facts:
    """What the program is made of, and what its message's sizes say; single lines that are quoted in the text have no line number."""
    quoted = of_carried(pieces(text, ""))
    alone = {name: {k: v for k, v in read.items() if not k.endswith("_line")} for name, read in quoted.items()}  # fmt: skip
    looks = (of_layers(tree), of_carried(tree), of_course(tree), of_sizes(tree, text))
    facts = alone | facts_of(tree)
    for found in looks:
        facts |= found
    if "nothing but linear" in facts:
        facts.pop("linear after linear", None)  # the same, and less of it
    return facts


def _read(claim: Claim, facts: Facts) -> dict[str, str] | None:
    """What the facts that a cause needs have read from the code; None where one is missing."""
    read: dict[str, str] = {}
    for group in claim.facts:
        held = next((f for f in group if f in facts), None)
        if held is None:
            return None
        read |= facts[held]
    return read if claim.facts else None
