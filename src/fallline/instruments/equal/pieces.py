"""Two gradients side by side: ratio, direction, distance, parameter by parameter, and which micro-batch counts how much."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fallline.instruments.equal.record import Record, Vectors

__all__ = ["Parting", "compare", "rounding", "shares"]

# Half the spacing of numbers near 1: what one rounding can change, relatively.
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass
class Parting:
    """How far a gradient is from the one it should be."""

    ratio: float  # of the lengths
    cosine: float
    apart: float  # length of the difference, relative to the reference
    # parameters that differ most: name, ratio, cosine
    parameters: list[tuple[str, float, float]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # parameters that only one side has


def compare(ours: Vectors, reference: Vectors, tolerance: float) -> Parting:
    """All parameters together, and those that are apart by more than the tolerance."""
    names = list({**reference, **ours})
    a = [_or_zero(ours, reference, n) for n in names]
    b = [_or_zero(reference, ours, n) for n in names]
    whole = math.sqrt(sum(float(t.square().sum()) for t in b))
    mine = math.sqrt(sum(float(t.square().sum()) for t in a))
    dot = sum(float((x * y).sum()) for x, y in zip(a, b, strict=True))
    off = math.sqrt(sum(float((x - y).square().sum()) for x, y in zip(a, b, strict=True)))
    found = Parting(_over(mine, whole), _over(dot, mine * whole), _over(off, whole))
    found.missing = sorted(
        n for n in {**ours, **reference} if _zero(ours, n) != _zero(reference, n)
    )
    rows = []
    for name, x, y in zip(names, a, b, strict=True):
        size, here = float(y.norm()), float((x - y).norm())
        # a parameter whose gradient is zero but for rounding says nothing
        if here > tolerance * size + tolerance * whole / math.sqrt(len(names)):
            both = float(x.norm()) * size
            rows.append(
                (here, name, _over(float(x.norm()), size), _over(float((x * y).sum()), both))
            )
    found.parameters = [(n, r, c) for _, n, r, c in sorted(rows, reverse=True)]
    return found


def _or_zero(vectors: Vectors, other: Vectors, name: str) -> Tensor:
    """A parameter that gets no gradient on this side has one of zeros."""
    return vectors[name].double() if name in vectors else torch.zeros_like(other[name]).double()


def _zero(vectors: Vectors, name: str) -> bool:
    return name not in vectors or not bool(vectors[name].any())


def _over(a: float, b: float) -> float:
    if b:
        return a / b
    return 1.0 if not a else math.inf


def shares(target: Vectors, parts: list[Vectors]) -> tuple[list[float], float]:
    """By how much each part has to be multiplied for their sum to be the target, and how much of the target is left over."""
    names = list(target)
    goal = torch.cat([target[n].double() for n in names]) if names else torch.zeros(1).double()
    columns = torch.stack([_flat(part, target, names) for part in parts], dim=1)
    gram = columns.T @ columns
    weights = torch.linalg.lstsq(gram, columns.T @ goal, driver="gelsd").solution
    left = float((columns @ weights - goal).norm())
    return [float(w) for w in weights], _over(left, float(goal.norm()))


def _flat(part: Vectors, like: Vectors, names: list[str]) -> Tensor:
    if not names:
        return torch.zeros(1).double()
    return torch.cat([part.get(n, torch.zeros_like(like[n])).double() for n in names])


def rounding(record: Record) -> float:
    """How far two right gradients may be apart, from the formats alone.

    Each operation on the way rounds to the format of the forward pass, and such errors add up like a random walk: the square root
    of their number. The sums, of a matrix product and over all inputs, are made in float32 or better. Where micro-batches pull in different directions, the sum is
    shorter than its parts, and the error larger against it. Both sides have it.
    """
    coarse = ROUNDOFF.get(record.dtype, 2.0**-24)
    fine = min(coarse, ROUNDOFF["float32"])
    lengths = [_length(b.added) for b in record.backwards]
    total: Vectors = {}
    for backward in record.backwards:
        for name, values in backward.added.items():
            total[name] = total[name] + values if name in total else values
    cancelled = max(1.0, _over(sum(lengths), _length(total))) if lengths else 1.0
    walk = coarse * math.sqrt(max(1, record.calls)) + fine * math.sqrt(
        max(1, record.elements + record.terms)
    )
    return 2 * min(cancelled, 1e3) * walk


def _length(vectors: Vectors) -> float:
    return math.sqrt(sum(float(v.double().square().sum()) for v in vectors.values()))
