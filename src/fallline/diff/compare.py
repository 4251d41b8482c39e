"""Two runs side by side: everything that may be a cause, then the first number that parts."""

from __future__ import annotations

from fallline.diff.data import data_of
from fallline.diff.difference import KINDS, Comparison, Difference
from fallline.diff.settings import settings_of
from fallline.diff.training import Pair, causes, parted
from fallline.errors import RunError
from fallline.runs.ending import how
from fallline.runs.series import Series

__all__ = ["compare"]

_OF_THE_STEP = ("learning-rate", "optimizer")


def compare(a: Series, b: Series, repeats: list[Series] | None = None) -> Comparison:
    """What differs between two runs. `repeats`: of the first, which measure the noise."""
    names = [t.optimizer for t in a.tracks if t.rank == a.ranks[0].number]
    others = [t.optimizer for t in b.tracks if t.rank == b.ranks[0].number]
    pairs = [Pair.of(name, a, b) for name in names if name in others]
    if not any(pair.updates for pair in pairs):
        raise RunError("the runs have no update in common, so there is nothing to compare")
    found, notes = settings_of(a, b)
    numbers = _numbers(pairs, a, repeats or [])
    noise = pairs[0].noise
    read = data_of(a, b, min((n for p in pairs if (n := p.noise.onset) is not None), default=None))
    found += _first(
        [*read.differences, *(d for pair in pairs for d in causes(pair, a, b)), *_alone(names, others)],
        numbers,
    )  # fmt: skip
    notes += _lengths(a, b, pairs[0])
    answer = Comparison(
        not any(d.update is not None for d in found),
        sorted(found, key=lambda d: d.order),
        noise,
        pairs[0].updates,
        notes,
    )
    answer.agrees = _agrees(answer, read.batches, read.indices, pairs[0])
    return answer


def _numbers(pairs: list[Pair], a: Series, repeats: list[Series]) -> list[Difference]:
    found = []
    for pair in pairs:
        again = [Pair.of(pair.name, a, run) for run in repeats]
        found += parted(pair, [other for other in again if other.updates])
    return found


def _first(reasons: list[Difference], numbers: list[Difference]) -> list[Difference]:
    """Causes that come first, at one update; numbers only where no cause comes before. What follows is left out."""
    if not reasons and not numbers:
        return []
    begin = min(d.update or 0 for d in [*reasons, *numbers])
    first = [d for d in reasons if (d.update or 0) == begin]
    parts = sorted(numbers, key=lambda d: d.order)[:1]
    if first and all(d.kind in _OF_THE_STEP for d in first):
        # the loss of an update is there before its step, and does not follow from these
        first += [d for d in parts if d.update == begin and d.name == "the loss"]
    return first or parts


def _alone(ours: list[str], theirs: list[str]) -> list[Difference]:
    if len(ours) == len(theirs):
        return []
    text = f"the runs step {len(ours)} → {len(theirs)} optimizers"
    return [Difference("optimizer", text, 0, None, "optimizers", len(ours), len(theirs))]


def _lengths(a: Series, b: Series, pair: Pair) -> list[str]:
    counts = [t.totals.get("updates", len(t.rows)) for t in (pair.a, pair.b)]
    notes = []
    if counts[0] != counts[1]:
        notes.append(f"the runs made {counts[0]:,} and {counts[1]:,} updates")
    for run, name in ((a, "A"), (b, "B")):
        status = run.ranks[0].status
        if not status:
            notes.append(f"{name} was killed, or is still running")
        elif how(status):
            notes.append(f"{name} {status if status.startswith('raised') else how(status)}")
    for run, name in ((a, "A"), (b, "B")):
        if "environment" not in run.meta:
            notes.append(f"{name} was recorded by an older version, without environment, code and options")  # fmt: skip
    return notes


def _agrees(answer: Comparison, batches: int, indices: int, pair: Pair) -> list[str]:
    """What is the same, in words."""
    kinds = {d.kind for d in answer.differences}
    said = {
        "environment": "environment",
        "code": "code",
        "options": "options",
        "data": f"data ({batches} batches" + (f", {indices} with their samples)" if indices else ")"),
        "initialisation": f"initialisation of {len(pair.layouts[0])} parameters",
        "learning-rate": "learning rate",
        "optimizer": "optimizer",
    }  # fmt: skip
    known = {"environment", "code", "options"} if pair.layouts[0] else set()
    known |= {"data"} if batches else set()
    known |= {"initialisation"} if 0 in pair.prints[0] and 0 in pair.prints[1] else set()
    known |= {"learning-rate", "optimizer"}
    return [said[kind] for kind in KINDS if kind in known - kinds]
