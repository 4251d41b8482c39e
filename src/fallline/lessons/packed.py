"""Several samples in one row: where each begins, and whether what one holds changes what is said about another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fallline.engine import rng
from fallline.lessons.lesson import IGNORED, Lesson, Observation, note
from fallline.lessons.scored import logits_of

__all__ = ["borders", "is_causal", "packing_observations"]

_SAME = 1e-4  # of the logits' spread: less is rounding
_SEGMENTS = ("seq_idx", "segment_ids", "document_ids", "doc_ids", "sequence_ids")


def borders(lesson: Lesson) -> list[list[int]]:
    """For each row, where samples begin after the first; empty where a row is one sample, or nothing says where they are."""
    ids = lesson.ids
    assert ids is not None
    rows = ids.shape[0]
    marked = next(
        (
            v
            for n in _SEGMENTS
            if isinstance(v := lesson.inputs.get(n), Tensor) and v.shape == ids.shape
        ),
        None,
    )
    if marked is not None:
        return [(1 + (row[1:] != row[:-1]).nonzero()[:, 0]).tolist() for row in marked]
    ends = lesson.inputs.get("cu_seq_lens_q")
    if isinstance(ends, Tensor) and rows == 1:
        return [[int(e) for e in ends.tolist() if 0 < e < ids.shape[1]]]
    if lesson.positions is None:
        return [[] for _ in range(rows)]
    found = []
    for row, (_, real, _) in enumerate(lesson.rows()):
        positions = lesson.positions[row]
        again = (positions[1:] == 0) & (positions[:-1] > 0) & real[1:]
        found.append((1 + again.nonzero()[:, 0]).tolist())
    return found


def packing_observations(lessons: Sequence[Lesson], model: nn.Module | None) -> list[Observation]:
    """Samples that predict, or attend, across the border to the one before."""
    for lesson in lessons:
        if lesson.ids is None:
            continue
        begins = borders(lesson)
        if not any(begins):
            continue
        count = sum(map(len, begins))
        predicted = _predicted(lesson, begins)
        if predicted:
            return [note("FL015", lesson.at, why="label", borders=count, crossed=predicted)]
        leak = _leak(lesson, begins, model) if model is not None else None
        if leak is not None and leak > _SAME:
            return [note("FL015", lesson.at, why="attention", borders=count, change=leak)]
        return []
    return []


def _predicted(lesson: Lesson, begins: list[list[int]]) -> int:
    """How many first tokens of samples are predicted from the sample before."""
    if lesson.labels is None or lesson.shift == 1:
        return 0
    return sum(int(lesson.labels[row, p]) != IGNORED for row, at in enumerate(begins) for p in at)


def _leak(lesson: Lesson, begins: list[list[int]], model: nn.Module) -> float | None:
    """How much the logits of the last sample of a row change when the tokens of the first one do."""
    row = next(i for i, at in enumerate(begins) if at)
    end, start = begins[row][0], begins[row][-1]
    ids = lesson.ids
    assert ids is not None
    other = ids.clone()
    other[row, :end] = _others(ids[row, :end], model)
    first, second = _logits(model, lesson, ids), _logits(model, lesson, other)
    if first is None or second is None or first.shape[1] != ids.shape[1]:
        return None
    before, after = first[row, start:], second[row, start:]
    spread = float(before.std()) or 1.0
    return float((before - after).abs().max()) / spread


def is_causal(lesson: Lesson, model: nn.Module) -> bool | None:
    """Whether an earlier position is blind to a later token. None: the model cannot be asked."""
    ids = lesson.ids
    assert ids is not None
    other = ids.clone()
    other[:, -1] = _others(ids[:, -1], model)
    first, second = _logits(model, lesson, ids), _logits(model, lesson, other)
    if first is None or second is None or first.shape[1] != ids.shape[1] or ids.shape[1] < 2:
        return None
    change = (first[:, :-1] - second[:, :-1]).abs().max()
    return float(change) <= _SAME * (float(first.std()) or 1.0)


def _others(tokens: Tensor, model: nn.Module) -> Tensor:
    """A different token for each, that the embedding has."""
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    size = max(sizes, default=int(tokens.max()) + 2)
    highest = min(size, max(int(tokens.max()) + 2, 3))
    return (tokens + 1) % highest


def _logits(model: nn.Module, lesson: Lesson, ids: Tensor) -> Tensor | None:
    """What the model says about these tokens, called as it was in training but without labels."""
    device, known = next(model.parameters()).device, lesson.ids
    assert known is not None
    given: dict[str, Any] = {}
    for name, value in lesson.inputs.items():
        if name in ("labels", "targets", "fused_lm_head", "num_items_in_batch"):
            continue
        tokens = (
            isinstance(value, Tensor)
            and value.shape == ids.shape
            and torch.equal(value.long(), known)
        )
        value = ids.to(value.dtype) if tokens else value
        given[name] = value.to(device) if isinstance(value, Tensor) else value
    with _aside(model):
        try:
            output = model(**given)
        except Exception:  # a model that needs what we do not have cannot be asked
            return None
    logits = logits_of(output)
    return None if logits is None else logits.detach().float().cpu()


@contextmanager
def _aside(model: nn.Module) -> Iterator[None]:
    """Without gradients, dropout or a trace in the random numbers."""
    modes = [(m, m.training) for m in model.modules()]
    random = rng.capture()
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        rng.restore(random)
