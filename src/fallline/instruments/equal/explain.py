"""What the difference between an accumulated gradient and the big batch's means: which micro-batch counts how much, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fallline.instruments.equal.pieces import Parting, compare, shares
from fallline.instruments.equal.record import Backward, Record, Vectors
from fallline.instruments.equal.report import Comparison, times

__all__ = [
    "Place",
    "accumulated",
    "after_clipping",
    "at_once",
    "comparison",
    "loss_scale",
    "within",
]

_SAME = 0.02  # how close two factors have to be to be called the same in an explanation


@dataclass
class Place:
    path: str
    line: int

    def said(self, code: str | None) -> str:
        """` (train.py:41, FL104)`"""
        where = [f"{self.path}:{self.line}"] if self.path else []
        parts = [*where, *([code] if code else [])]
        return f" ({', '.join(parts)})" if parts else ""


def within(record: Record, tolerance: float) -> str:
    """`float32's rounding (2e-06)`"""
    return f"{record.dtype}'s rounding ({tolerance:.0e})"


def at_once(base: Record, big: Record, k: int = 0) -> Vectors:
    """The gradient of the loop's own loss on the big batch: without what the loop divides by because it accumulates.

    `k`: over how many micro-batches it means to accumulate, where that is not their number.
    """
    k = k or len(base.backwards)
    first = big.backwards[0]
    ours = base.backwards[0].divisors
    looked_ahead = base.backwards[0].batches >= min(k, len(base.backwards))
    factor = _meant(ours, first.divisors, k, looked_ahead) * _of_window(base, first, k) / big.scale
    # of several optimizers, only this one's parameters
    whole = first.added if first.seen else big.unclipped
    others = set(whole) - set(base.reached) if base.optimizers > 1 else set()
    return {name: values * factor for name, values in whole.items() if name not in others}


def _of_window(base: Record, big: Backward, k: int) -> float:
    """A loop that reads all its micro-batches before the first backward may divide by a count of all of them (of their tokens).

    Made at once, it has read that many large batches, and divides by their count: too much by this factor.
    """
    first = base.backwards[0]
    parts = min(k, len(base.backwards))
    if min(first.batches, big.batches) < parts or len(first.divisors) != len(big.divisors):
        return 1.0
    factor = 1.0
    for place, divisor in enumerate(first.divisors):
        same = all(b.divisors[place : place + 1] == [divisor] for b in base.backwards)
        if same and not _close(divisor, k):
            factor *= big.divisors[place] / divisor
    return factor


def _meant(ours: list[float], theirs: list[float], k: int, looked_ahead: bool) -> float:
    """What the loop divides by because it accumulates: by k, once or more; else by some other whole number, always the same.

    A loop that looks ahead may divide by a count of all its micro-batches, which is right.
    """
    count = min(sum(_close(d, k) for d in divisors) for divisors in (ours, theirs))
    if count or looked_ahead:
        return float(k) ** count
    same = [d for d, e in zip(ours, theirs, strict=False) if d == e and d.is_integer() and d > 1]
    return same[0] if same else 1.0


def _close(a: float, b: float, room: float = _SAME) -> bool:
    return math.isclose(a, b, rel_tol=room)


def accumulated(what: str, base: Record, reference: Vectors, tolerance: float) -> Comparison:
    """The loop's sum over its micro-batches against the gradient of all their samples at once."""
    ours = _unscaled(base)
    reference = {n: v for n, v in reference.items() if n in ours or bool(v.any())}
    parting = compare(ours, reference, tolerance)
    if parting.apart <= tolerance:
        text = _right(what, base, tolerance)
        place = Place("", 0)
        return comparison(what, parting, tolerance, True, None, place, text)
    code, place, text = _Cause(base, reference, parting, tolerance, what).found()
    if code == "FL111":
        what = "tokens" if what == "accumulation" else what
    return comparison(what, parting, tolerance, False, code, place, text + place.said(code) + ".")


def _right(what: str, base: Record, tolerance: float) -> str:
    k = len(base.backwards)
    count = "the one micro-batch" if k == 1 else f"the {k} micro-batches"
    if what == "remainder":
        count = f"{count} left over at the end of an epoch"
    return f"{count} give{'s' if k == 1 else ''} the gradient of all their samples at once, within {within(base, tolerance)}."


def comparison(
    what: str,
    parting: Parting,
    tolerance: float,
    equal: bool,
    code: str | None,
    place: Place,
    text: str,
) -> Comparison:
    """What was compared, with how far apart the two are."""
    return Comparison(
        what,
        parting.ratio,
        parting.cosine,
        tolerance,
        equal,
        code,
        place.path,
        place.line,
        text,
        parting.parameters,
    )


class _Cause:
    """Finds out which of the known mistakes explains the numbers."""

    def __init__(
        self, base: Record, reference: Vectors, parting: Parting, tolerance: float, what: str
    ) -> None:
        self.base, self.parting, self.what = base, parting, what
        self.k = len(base.backwards)
        parts = [b.added for b in base.backwards]
        self.counted, self.due, self.left = [1.0] * self.k, [1.0] * self.k, 0.0
        if any(b.seen for b in base.backwards):
            self.counted, _ = shares(_unscaled(base), parts)
            self.due, self.left = shares(reference, parts)
        # weights come out of a system of equations, and are less exact than the gradients
        self.room = max(_SAME, 10 * tolerance)
        self.backward = Place(base.backwards[0].path, base.backwards[0].line)

    def found(self) -> tuple[str | None, Place, str]:
        for look in (self._clipped, self._coupled, self._repeatedly, self._wiped, self._factor, self._means):  # fmt: skip
            found = look()
            if found is not None:
                return found
        text = f"{self._length()}, direction {self.parting.cosine:.2f}"
        by = math.prod(self.base.backwards[0].divisors)
        if self.parting.cosine > 1 - self.room and not _close(by, 1):
            text = f"{self._length()}: the loss is divided by {by:g}, and has to be by {by * self.parting.ratio:g}"
        return None, self.backward, text

    def _length(self) -> str:
        name = (
            "The gradient of the epoch's remainder"
            if self.what == "remainder"
            else "The accumulated gradient"
        )
        return f"{name} is {times(self.parting.ratio)} the big batch's"

    def _clipped(self) -> tuple[str, Place, str] | None:
        early = [c for c in self.base.clips if c.backwards < self.k]
        binding = [c for c in early if c.how == "value" or c.norm > c.threshold]
        if not binding:
            return None
        place = Place(binding[0].path, binding[0].line)
        text = f"{self._length()}, direction {self.parting.cosine:.2f}: it is clipped after each micro-batch, not once before the step"
        return "FL103", place, text

    def _coupled(self) -> tuple[str | None, Place, str] | None:
        if self.left <= self.room:
            return None
        text = (
            f"{self._length()}, direction {self.parting.cosine:.2f}, and no weighting of the micro-batches gives it: "
            "the loss depends on what else is in the batch (in-batch negatives, batch statistics, random numbers)"
        )
        return "FL128", self.backward, text

    def _wiped(self) -> tuple[str, Place, str] | None:
        largest = max(abs(c) for c in self.counted)
        room = min(
            self.room, 0.5
        )  # in a coarse format the weights say little, but not that all are lost
        lost = [i for i, c in enumerate(self.counted) if abs(c) < room * largest]
        if not lost or self.k == 1:
            return None
        kept = [str(i + 1) for i in range(self.k) if i not in lost]
        who = (
            f"only micro-batch {kept[0]} of {self.k} counts"
            if len(kept) == 1
            else f"only {len(kept)} of {self.k} micro-batches count"
        )
        place = Place(self.base.step_path, self.base.step_line)
        text = f"{self._length()}, direction {self.parting.cosine:.2f}: {who}, the gradients of the others are lost before the step"
        return "FL105", place, text

    def _even(self, weights: list[float]) -> bool:
        middle = sum(weights) / len(weights)
        return all(abs(w - middle) <= self.room * abs(middle) for w in weights)

    def _repeatedly(self) -> tuple[str, Place, str] | None:
        if self.k < 2 or self._even(self.counted):
            return None
        steps = [b / a for a, b in zip(self.counted, self.counted[1:], strict=False) if a]
        if len(steps) != self.k - 1 or not all(_close(s, steps[0], self.room) for s in steps):
            return None
        text = (
            f"{self._length()}, direction {self.parting.cosine:.2f}: the gradients are divided inside the accumulation, "
            f"so the first micro-batch counts {times(self.counted[0] / self.counted[-1])} as much as the last"
        )
        return "FL110", self.backward, text

    def _factor(self) -> tuple[str | None, Place, str] | None:
        if (
            not (self._even(self.counted) and self._even(self.due))
            or self.parting.cosine < 1 - self.room
        ):
            return None
        ratio, k = self.parting.ratio, self.k
        if self.what == "remainder":
            return self._remainder(ratio)
        if _close(ratio, k):
            return "FL104", self.backward, f"{self._length()}: the loss is not divided by {k}"
        if _close(ratio, 1 / k):
            return "FL129", self.backward, f"{self._length()}: the loss is divided by {k} twice"
        by = math.prod(self.base.backwards[0].divisors)
        if not _close(by, 1) and _close(ratio * by, k):
            text = f"{self._length()}: {k} micro-batches are accumulated, and the loss is divided by {by:g}"
            return "FL104" if ratio > 1 else "FL129", self.backward, text
        return None

    def _remainder(self, ratio: float) -> tuple[str, Place, str]:
        by = math.prod(self.base.backwards[0].divisors)
        text = f"{self._length()}: "
        if not _close(by, 1) and _close(ratio * by, self.k):
            return (
                "FL107",
                self.backward,
                f"{text}{self.k} micro-batch{'es are' if self.k > 1 else ' is'} left over, and the loss is divided by {by:g}",
            )
        return (
            "FL107",
            self.backward,
            f"{text}its {self.k} micro-batches are not divided by their number",
        )

    def _means(self) -> tuple[str, Place, str] | None:
        if not self._even(self.counted) or self._even(self.due):
            return None
        whole = sum(self.due)
        weights = ", ".join(f"{w / whole:.2f}" for w in self.due) if whole else ""
        text = (
            f"{self._length()}, direction {self.parting.cosine:.2f}: each micro-batch's mean counts the same, "
            f"though they hold unequal numbers of targets; their shares should be {weights}"
        )
        return "FL111", self.backward, text


def _still_scaled(base: Record) -> bool:
    """Whether what is clipped, or else stepped, is still multiplied by the loss scale."""
    if base.scale == 1:
        return False
    counted, _ = shares(base.unclipped, [b.added for b in base.backwards])
    return max(abs(c) for c in counted) * math.sqrt(base.scale) > 1


def _unscaled(base: Record) -> Vectors:
    factor = 1 / base.scale if _still_scaled(base) else 1.0
    return {n: v * factor for n, v in base.unclipped.items()}


def loss_scale(base: Record, tolerance: float) -> Comparison | None:
    """Whether the loss scale is off the gradients before they are clipped and stepped."""
    if not _still_scaled(base):
        return None
    clips = [c for c in base.clips if c.backwards == len(base.backwards)]
    if clips:
        code, place, done = "FL201", Place(clips[-1].path, clips[-1].line), "clipped"
    else:
        code, place, done = "FL203", Place(base.step_path, base.step_line), "stepped"
    text = f"The gradient is {done} while it is {times(base.scale)} too long: it is still multiplied by the loss scale{place.said(code)}."
    return Comparison(
        "loss scale", base.scale, 1.0, tolerance, False, code, place.path, place.line, text
    )


def after_clipping(base: Record, tolerance: float) -> Comparison | None:
    """Whether what was clipped is what reached the optimizer."""
    clips = [c for c in base.clips if c.backwards == len(base.backwards)]
    if not clips or clips[-1].how != "norm" or _still_scaled(base):
        return None
    last = clips[-1]
    factor = min(1.0, last.threshold / last.norm) if last.norm > 0 else 1.0
    due = {n: v * factor for n, v in base.unclipped.items()}
    # clip_grad_norm_ adds 1e-6 to the norm
    room = tolerance + (1e-6 / last.norm if last.norm > 0 else 0.0)
    parting = compare(base.reached, due, room)
    if parting.apart <= room:
        text = f"what clip_grad_norm_ leaves is what reaches the optimizer, within {within(base, tolerance)}."
        return comparison("clipping", parting, room, True, None, Place("", 0), text)
    place = Place(last.path, last.line)
    text = f"The gradient is changed after it was clipped: it reaches the optimizer {times(parting.ratio)} as long"
    return comparison("clipping", parting, room, False, None, place, text + place.said(None) + ".")
