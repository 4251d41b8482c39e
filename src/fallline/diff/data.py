"""Which data two runs read: the first sample that differs, by its index or by its values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fallline.diff.difference import Difference
from fallline.runs.prints import BATCH, INDICES, Print
from fallline.runs.series import Series

__all__ = ["Read", "data_of"]

_NEAR = 1e-6  # of the largest number of a batch: what a different order of summing can make of it
_FORWARD = "forward"
_FACTS = ("dataset", "samples", "batch size", "sampler", "drop_last")

Place = tuple[int, str, int]  # update, loader, batch within the update


@dataclass
class Read:
    """What was compared."""

    differences: list[Difference]
    batches: int = 0  # compared by value
    indices: int = 0  # compared by index


def data_of(a: Series, b: Series, onset: int | None) -> Read:
    """`onset`: the first update at which the numbers part; what a model is called with may follow from that."""
    found = Read(list(_loaders(a, b)))
    for place, here, there in _pairs(a, b, INDICES):
        found.indices += 1
        if not found.differences and (first := _order(place, here, there)) is not None:
            found.differences.append(first)
    names = {(p.index, p.name, p.number): p for p in _prints(a, INDICES)}
    for place, here, there in _pairs(a, b, BATCH):
        found.batches += 1
        if found.differences or (place[1] == _FORWARD and onset is not None and onset < place[0]):
            continue
        first = _values(place, here, there, names.get(place))
        if first is not None:
            found.differences.append(first)
    return found


def _loaders(a: Series, b: Series) -> Iterator[Difference]:
    """Of loaders that feed updates: another batch size or dataset."""
    ours, theirs = _facts(a), _facts(b)
    for name, other in _training(a, b).items():
        here, there = ours[name], theirs[other]
        for fact in _FACTS:
            if here.get(fact) != there.get(fact) and fact in here and fact in there:
                text = f"the {fact} of {name}: {here[fact]} → {there[fact]}"
                yield Difference("data", text, 0, None, fact, here[fact], there[fact])


def _training(a: Series, b: Series) -> dict[str, str]:
    """Loaders that feed updates, in both runs: the first is compared with the first, whatever else was read before."""
    sides = ([n for n, f in _facts(run).items() if f.get("trains")] for run in (a, b))
    return dict(zip(*sides, strict=False))


def _facts(run: Series) -> dict[str, Mapping[str, Any]]:
    return dict(run.meta.get("loaders") or {})


def _prints(run: Series, kind: str) -> list[Print]:
    return [p for p in run.ranks[0].prints if p.kind == kind] if run.ranks else []


def _pairs(a: Series, b: Series, kind: str) -> Iterator[tuple[Place, Print, Print]]:
    """Batches that both runs have recorded, in their order, of loaders that feed updates."""
    names = {_FORWARD: _FORWARD, **_training(a, b)}
    theirs = {(p.index, p.name, p.number): p for p in _prints(b, kind)}
    for here in sorted(_prints(a, kind), key=lambda p: (p.index, p.name, p.number)):
        there = theirs.get((here.index, names.get(here.name, ""), here.number))
        if there is not None:
            yield (here.index, here.name, here.number), here, there


def _order(place: Place, here: Print, there: Print) -> Difference | None:
    pairs = zip(here.values, there.values, strict=False)
    for position, (ours, theirs) in enumerate(pairs):
        if ours != theirs:
            text = f"the order of samples, from update {place[0]} on: its sample {position} is number {ours:.0f} → {theirs:.0f} of the dataset"
            if sorted(here.values) == sorted(there.values):
                text += "; the batch holds the same samples in a different order"
            return Difference("data", text, place[0], None, "order", int(ours), int(theirs))
    if len(here.values) != len(there.values):
        sizes = len(here.values), len(there.values)
        text = f"the batch of update {place[0]} has {sizes[0]} → {sizes[1]} samples"
        return Difference("data", text, place[0], None, "batch size", *sizes)
    return None


def _values(place: Place, here: Print, there: Print, indices: Print | None) -> Difference | None:
    update, loader, _ = place
    ours, theirs = here.values, there.values
    if len(ours) != len(theirs):
        text = f"the batch of update {update} has {len(ours)} → {len(theirs)} samples"
        return Difference("data", text, update, None, "batch size", len(ours), len(theirs))
    size = max((abs(v) for v in (*ours, *theirs) if math.isfinite(v)), default=0.0)
    odd = [
        n
        for n, (x, y) in enumerate(zip(ours, theirs, strict=True))
        if not (abs(x - y) <= _NEAR * size or (x != x and y != y) or x == y)
    ]
    if not odd:
        return None
    source = "what the model is called with" if loader == _FORWARD else f"the values of {loader}"
    if indices is not None and odd[0] < len(indices.values):
        index = int(indices.values[odd[0]])
        source = f"the values of sample {index} of the dataset"
    text = f"{source}, in update {update}: {len(odd)} of {len(ours)} samples differ"
    name = "values" if indices is None else "sample"
    return Difference("data", text, update, None, name)
