"""What of a claim fits a question: the actions that were not done already and that its words do not rule out, and its yes or no."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fallline.triage.claim import Action, Claim
from fallline.triage.done import Done
from fallline.triage.shape import Shape
from fallline.triage.words import Said

__all__ = ["MOST", "Fit", "verdict_of"]

MOST = 3  # actions of a reply


@dataclass(frozen=True, slots=True)
class Fit:
    """What the question says, for actions that it rules out or already names as done."""

    words: Said
    text: str
    done: Done = field(default_factory=Done)

    def of(self, *claims: Claim) -> list[Action]:
        """The first of the claims' actions that are left, at most three."""
        return [
            a
            for claim in claims
            for a in claim.actions
            if a.fits(self.words, self.text) and not self.done.repeats(a, claim)
        ][:MOST]

    def left_out(self, claims: Iterable[Claim]) -> list[str]:
        """What to call that which is not recommended because it was done."""
        repeated = [a for c in claims for a in c.actions if self.done.repeats(a, c)]
        return self.done.called(repeated)

    def exhausted(self, claim: Claim) -> bool:
        """Whether the first thing that a claim recommends has been done: then it does not answer."""
        return bool(claim.actions) and self.done.repeats(claim.actions[0], claim)


def verdict_of(shape: Shape, claim: Claim, seen: bool = False) -> str | None:
    """Yes or no, where the question asks what the claim answers; nothing where that is not certain."""
    if seen and shape.mine:
        return shape.judged(wrong=True)
    heard = [
        said
        for own in ("yes", "no", "depends")
        if (said := shape.heard(own, claim.turns, claim.wordings(own))) is not None
    ]
    # of wordings that ask opposite things the nearer one
    nearest = {said for near, said in heard if near == max(heard)[0]}
    return nearest.pop() if len(nearest) == 1 else None
