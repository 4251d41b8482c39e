"""Samples that occur where they should not: in the evaluation set too, or more than once in the first batches."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from fallline.engine import rng
from fallline.lessons.lesson import Lesson, Observation, note
from fallline.lessons.script_objects import Held
from fallline.location import Location

__all__ = ["Repeated", "leak_observations", "repeated", "worker_observations"]

_MOST = 5_000  # samples that are read of each set
_SECONDS = 8.0
_FEWEST = 2
_SHARE = 0.01
_IGNORED_FIELDS = (
    "attention_mask",
    "labels",
    "token_type_ids",
    "position_ids",
    "length",
    "idx",
    "index",
    "id",
)


@dataclass
class Repeated:
    """Samples of the first batches that came more than once."""

    samples: int
    distinct: int

    @property
    def share(self) -> float:
        return 1 - self.distinct / self.samples if self.samples else 0.0


def repeated(lessons: Sequence[Lesson]) -> Repeated:
    """By their tokens, or by the numbers that went in."""
    marks = [mark for lesson in lessons for mark in _rows(lesson)]
    return Repeated(len(marks), len(set(marks)))


def _rows(lesson: Lesson) -> Iterator[str]:
    if lesson.ids is not None:
        for ids, real, _ in lesson.rows():
            yield _mark(ids[real])
        return
    wide = [v for v in lesson.inputs.values() if isinstance(v, Tensor) and v.dim() > 1]
    for row in wide[0] if wide else ():
        yield _mark(row)


def worker_observations(
    lessons: Sequence[Lesson], iterator: Any, at: Location | None
) -> list[Observation]:
    """Workers that each read the whole of an iterable dataset: their first batches are the same."""
    workers = getattr(iterator, "_num_workers", 0)
    if not 2 <= workers <= len(lessons) or not isinstance(iterator._dataset, IterableDataset):
        return []
    first = [sorted(_rows(lesson)) for lesson in lessons[:workers]]
    same = bool(first[0]) and all(rows == first[0] for rows in first)
    return [note("FL025", at, workers=workers)] if same else []


def leak_observations(held: Held | None, trained: Any, at: Location | None) -> list[Observation]:
    """Training samples that the evaluation set holds too. Read when the script is over, so that nothing of it changes."""
    if held is None or trained is None:
        return []
    random = rng.capture()
    try:
        for kept in _evaluated(held, trained):
            fields = _common_fields(trained, kept)
            train, found = _marks(trained, fields), _marks(kept, fields)
            common = sum(found[mark] for mark in found if mark in train)
            if common >= max(_FEWEST, _SHARE * sum(found.values())):
                facts = {
                    "common": common,
                    "evaluated": sum(found.values()),
                    "trained": sum(train.values()),
                }
                return [note("FL026", at, **facts)]
    finally:
        rng.restore(random)
    return []


def _common_fields(trained: Any, kept: Any) -> set[str] | None:
    """Trainers drop columns of one and not of the other: what both have is compared."""
    first, second = next(_samples(trained), None), next(_samples(kept), None)
    if not isinstance(first, dict) or not isinstance(second, dict):
        return None
    return {k for k in first if k in second and k not in _IGNORED_FIELDS} or set(first)


def _evaluated(held: Held, trained: Any) -> Iterator[Any]:
    seen: list[Any] = [trained]
    for trainer in held.trainers:
        kept = getattr(trainer, "eval_dataset", None)
        for dataset in kept.values() if isinstance(kept, dict) else [kept]:
            if dataset is not None:
                seen.append(dataset)
                yield dataset
    for loader in held.loaders:
        dataset = loader.dataset
        if not any(dataset is known for known in seen):
            seen.append(dataset)
            yield dataset


def _marks(dataset: Any, fields: set[str] | None) -> Counter[str]:
    found: Counter[str] = Counter()
    begun = time.monotonic()
    for sample in _samples(dataset):
        found[_sample_mark(sample, fields)] += 1
        if time.monotonic() > begun + _SECONDS:
            break
    return found


def _samples(dataset: Any) -> Iterator[Any]:
    """The first samples of a dataset that can be asked for by number."""
    try:
        length = len(dataset)
    except TypeError:
        return
    for index in range(min(length, _MOST)):
        try:
            yield dataset[index]
        except Exception:  # a dataset that cannot be read outside of its loader
            return


def _sample_mark(sample: Any, fields: set[str] | None) -> str:
    """A sample by its inputs: labels and bookkeeping may differ."""
    if isinstance(sample, dict) and fields is not None:
        return _mark([sample.get(k) for k in sorted(fields)])
    if isinstance(sample, tuple | list) and len(sample) > 1:
        return _mark(sample[0])
    return _mark(sample)


def _mark(thing: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts(thing):
        digest.update(part)
    return digest.hexdigest()


def _parts(thing: Any) -> Iterable[bytes]:
    if isinstance(thing, Tensor):
        flat = thing.detach().cpu().contiguous()
        flat = flat.float() if flat.dtype == torch.bfloat16 else flat
        yield flat.numpy().tobytes()
    elif isinstance(thing, dict):
        for key in sorted(thing, key=str):
            yield from _parts(thing[key])
    elif isinstance(thing, list | tuple):
        for part in thing:
            yield from _parts(part)
    elif hasattr(thing, "tobytes"):
        yield thing.tobytes()
    else:
        yield repr(thing).encode()
