"""Targets and inputs that cannot teach: constant, on the wrong scale, of one class only. For images, features and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fallline.lessons.lesson import Lesson, Observation, note
from fallline.lessons.tensors import tensors_in

__all__ = ["Plain", "plain_observations", "plain_of"]

_FEWEST = 8  # samples: fewer are of one class by chance
_CLASSES = 1000
_BYTES = 255.0


@dataclass
class Plain:
    """What the first batches hold beside text."""

    inputs: dict[str, Any] = field(default_factory=dict)
    classes: dict[int, int] = field(default_factory=dict)
    targets: dict[str, float] = field(default_factory=dict)


def plain_of(lessons: Sequence[Lesson]) -> Plain:
    """Shapes, ranges and class counts."""
    found = Plain()
    features = _features(lessons)
    if features:
        joined = torch.cat([f.double().flatten() for f in features])
        finite = joined[joined.isfinite()]
        found.inputs = {"shape": list(features[0].shape), **_range(finite)}
    labels = _class_labels(lessons)
    if labels is not None and labels.numel() and len(set(labels.tolist())) <= _CLASSES:
        found.classes = dict(sorted(Counter(labels.tolist()).items()))
    numbers = _number_targets(lessons)
    if numbers is not None:
        found.targets = _range(numbers)
    return found


def _range(values: Tensor) -> dict[str, float]:
    if not values.numel():
        return {}
    spread = float(values.std()) if values.numel() > 1 else 0.0
    return {
        "least": float(values.min()),
        "greatest": float(values.max()),
        "mean": float(values.mean()),
        "std": spread,
    }


def plain_observations(lessons: Sequence[Lesson]) -> list[Observation]:
    """Degenerate targets and inputs of the first batches."""
    given = [lesson for lesson in lessons if lesson.given or lesson.inputs]
    if not given:
        return []
    found = [*_targets(given), *_inputs(given)]
    return found[:2]


def _targets(lessons: Sequence[Lesson]) -> list[Observation]:
    labels = _class_labels(lessons)
    classes = max(
        (g.classes for x in lessons for g in x.given if g.function == "cross_entropy"), default=0
    )
    at = next((g.at for x in lessons for g in x.given), lessons[0].at)
    if labels is not None and labels.numel() >= _FEWEST and classes > 1 and len(lessons) > 1:
        if bool((labels == labels[0]).all()):
            facts = {
                "what": "targets",
                "value": int(labels[0]),
                "samples": labels.numel(),
                "classes": classes,
            }
            return [note("FL028", at, **facts)]
    numbers = _number_targets(lessons)
    if (
        numbers is not None
        and numbers.numel() >= _FEWEST
        and len(lessons) > 1
        and bool((numbers == numbers[0]).all())
    ):
        return [note("FL028", at, what="targets", value=float(numbers[0]), samples=numbers.numel())]
    return []


def _inputs(lessons: Sequence[Lesson]) -> list[Observation]:
    at = lessons[0].at
    ids = [x.ids for x in lessons if x.ids is not None]
    if ids:
        same = _same_rows(ids)
        return [note("FL028", at, what="inputs", why="same", samples=same)] if same else []
    features = _features(lessons)
    if not features:
        return []
    samples = sum(len(f) for f in features)
    if samples >= _FEWEST:
        first = features[0][:1]
        if all(f.shape[1:] == first.shape[1:] and bool((f == first).all()) for f in features):
            zero = not bool(first.any())
            return [
                note("FL028", at, what="inputs", why="zero" if zero else "same", samples=samples)
            ]
    return _scale(features, at)


def _same_rows(tables: list[Tensor]) -> int:
    """How many samples there are, where all of them are the same text."""
    rows = [row for table in tables for row in table]
    same = all(r.shape == rows[0].shape and torch.equal(r, rows[0]) for r in rows)
    return len(rows) if same and len(rows) >= _FEWEST else 0


def _scale(features: list[Tensor], at: Any) -> list[Observation]:
    """Images as bytes in floating point, or with their channels last."""
    images = [f for f in features if f.dim() == 4]
    if not images:
        return []
    low, high = min(float(f.min()) for f in images), max(float(f.max()) for f in images)
    whole = all(bool((f == f.round()).all()) for f in images)
    if low >= 0 and _BYTES / 2 < high <= _BYTES and whole:
        return [note("FL028", at, what="scale", low=low, high=high)]
    shape = images[0].shape
    if shape[-1] in (1, 3) and shape[1] not in (1, 3, 4) and shape[1] == shape[2]:
        return [note("FL028", at, what="channels", shape=list(shape))]
    return []


def _features(lessons: Sequence[Lesson]) -> list[Tensor]:
    """Floating-point inputs that came from the loader, one from each batch."""
    found = []
    for lesson in lessons:
        if lesson.ids is not None:
            continue
        inputs = [v for v in lesson.inputs.values() if isinstance(v, Tensor)]
        wide = [t for t in inputs if t.is_floating_point() and t.dim() > 1]
        if wide and _from_batch(wide[0], lesson):
            found.append(wide[0])
    return found


def _from_batch(tensor: Tensor, lesson: Lesson) -> bool:
    """Whether it is what the loader gave, up to its type and shape; without a loader nothing is known to be data."""
    parts = tensors_in(lesson.batch)
    return any(_same(tensor, part) for part in parts)


def _same(one: Tensor, other: Tensor) -> bool:
    if one.numel() != other.numel() or not one.numel():
        return False
    return torch.equal(one.flatten().double(), other.flatten().double())


def _class_labels(lessons: Sequence[Lesson]) -> Tensor | None:
    """One class for each sample, out of the loader."""
    found = []
    for lesson in lessons:
        if lesson.ids is not None and lesson.labels is not None:
            continue
        for given in lesson.given:
            target = given.target
            whole = not target.is_floating_point() and target.dim() == 1
            if (
                given.function in ("cross_entropy", "nll_loss")
                and whole
                and _from_batch(target, lesson)
            ):
                found.append(target[target != given.ignored])
    return torch.cat(found) if found else None


def _number_targets(lessons: Sequence[Lesson]) -> Tensor | None:
    found = []
    for lesson in lessons:
        for given in lesson.given:
            plain = given.function not in ("cross_entropy", "nll_loss")
            if plain and given.target.is_floating_point() and _from_batch(given.target, lesson):
                found.append(given.target.double().flatten())
    return torch.cat(found) if found else None
