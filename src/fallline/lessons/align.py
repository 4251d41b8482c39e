"""Which token each label stands for: the targets of a loss, laid over the tokens that the model read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fallline.lessons.lesson import IGNORED, Given, Lesson

__all__ = ["align", "shift_of"]

_IDS = ("decoder_input_ids", "input_ids", "idx", "tokens", "ids", "input", "inputs", "x", "src")
_LABELS = ("labels", "targets", "target", "lm_labels", "y")
_FEWEST = 6  # labels: fewer agree by chance
_SURE = 0.9
_DOUBTFUL = 0.5


def align(lesson: Lesson, *, shifts_itself: bool, seq2seq: bool = False) -> None:
    """Fill in `ids`, `attention`, `positions`, `labels` and `shift`. `shifts_itself`: the model shifts the labels it is given."""
    ids = _ids(lesson)
    if ids is None:
        return
    lesson.ids = ids
    lesson.attention = _mask(lesson.inputs.get("attention_mask"), ids)
    positions = lesson.inputs.get("position_ids")
    if isinstance(positions, Tensor) and positions.shape == ids.shape:
        lesson.positions = positions
    found = [
        _from_loss(g, ids) for g in lesson.given if g.function in ("cross_entropy", "nll_loss")
    ]
    fitting = [labels for labels in found if labels is not None]
    if fitting:
        lesson.labels = fitting[0]
    elif (handed := _handed(lesson, ids)) is not None:
        lesson.labels = _from_model(handed, shifts_itself)
    if seq2seq:
        _decoder(lesson)
    elif lesson.labels is not None:
        _turn(lesson)
        lesson.shift = shift_of(ids if lesson.ids is None else lesson.ids, lesson.labels)
        lesson.in_place = lesson.shift is None and not shifts_itself


def _decoder(lesson: Lesson) -> None:
    """Of an encoder and a decoder, what is learned are the decoder's words: the labels themselves."""
    labels = next(
        (v for n in _LABELS if isinstance(v := lesson.inputs.get(n), Tensor) and v.dim() == 2), None
    )
    lesson.positions = lesson.labels = None
    if labels is None:
        lesson.ids = lesson.attention = None
        return
    lesson.attention = labels != IGNORED
    lesson.ids = _as_int(labels.masked_fill(labels == IGNORED, 0))
    lesson.labels = torch.cat([_as_int(labels), torch.full((labels.shape[0], 1), IGNORED)], dim=1)


def _ids(lesson: Lesson) -> Tensor | None:
    """The tokens: whole numbers in two dimensions (one row is one sample), by the usual names first."""
    named = [lesson.inputs.get(name) for name in _IDS]
    tensors = [t for t in (*named, *lesson.inputs.values()) if isinstance(t, Tensor) and _whole(t)]
    tables = (t for t in tensors if t.dim() == 2 and t.shape[1] > 1)
    found = next(tables, None)
    row = lesson.inputs.get("input_ids")
    if found is None and isinstance(row, Tensor) and _whole(row) and row.dim() == 1:
        found = row[None]
    return None if found is None else _as_int(found)


def _whole(thing: Any) -> bool:
    return isinstance(thing, Tensor) and thing.dtype in (torch.int64, torch.int32)


def _as_int(tensor: Tensor) -> Tensor:
    return tensor.to(torch.int64)


def _mask(mask: Any, ids: Tensor) -> Tensor | None:
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        return mask != 0
    return None


def _handed(lesson: Lesson, ids: Tensor) -> Tensor | None:
    """The labels that the model was given, where there is one for each token."""
    for name in _LABELS:
        value = lesson.inputs.get(name)
        if _whole(value) and isinstance(value, Tensor) and value.numel() == ids.numel():
            return _as_int(value.reshape(ids.shape))
    return None


def _from_model(labels: Tensor, shifts_itself: bool) -> Tensor:
    """Of a model that shifts, the label of a token is in its own place, and nothing predicts the first."""
    rows = labels.shape[0]
    if shifts_itself:
        first = torch.full((rows, 1), IGNORED)
        return torch.cat([first, labels[:, 1:], first], dim=1)
    return torch.cat([torch.full((rows, 1), IGNORED), labels], dim=1)


def _from_loss(given: Given, ids: Tensor) -> Tensor | None:
    """Targets of a loss over all positions: what position t predicts is the label of token t + 1."""
    rows, length = ids.shape
    target = given.target
    if target.is_floating_point() or target.numel() == 0 or target.numel() % rows:
        return None
    width = target.numel() // rows
    if width < length - 1 or width > 4 * length:
        return None
    table = target.reshape(rows, width).to(torch.int64).clone()
    if given.ignored is not None:
        table[table == given.ignored] = IGNORED
    if given.weights is not None and given.weights.numel() == table.numel():
        table[given.weights.reshape(table.shape) == 0] = IGNORED
    if width > length:
        table = table[:, width - length :]  # virtual tokens of a prompt came before
    after = torch.full((rows, length - table.shape[1]), IGNORED)
    return torch.cat([torch.full((rows, 1), IGNORED), table, after], dim=1)


def _turn(lesson: Lesson) -> None:
    """Where samples are columns, `(length, samples)`, both tables are turned."""
    assert lesson.ids is not None and lesson.labels is not None
    ids, labels = lesson.ids, lesson.labels
    if lesson.attention is not None or _agreement(ids, labels, 0) >= _DOUBTFUL:
        return
    flat = labels[:, 1:].reshape(-1)
    if flat.numel() != ids.numel():
        return
    turned = flat.reshape(ids.shape).T
    turned = torch.cat([torch.full((turned.shape[0], 1), IGNORED), turned], dim=1)
    if _agreement(ids.T, turned, 0) >= _SURE:
        lesson.ids, lesson.labels, lesson.positions = ids.T, turned, None


def shift_of(ids: Tensor, labels: Tensor) -> int | None:
    """0 where labels are the tokens themselves, 1 where they are the ones after, -1 the ones before."""
    if _agreement(ids, labels, 0) >= _DOUBTFUL:
        return 0
    for shift in (1, -1):
        if _agreement(ids, labels, shift) >= _SURE:
            return shift
    return None


def _agreement(ids: Tensor, labels: Tensor, shift: int) -> float:
    """The share of labels at p that are the token at p + shift."""
    length = ids.shape[1]
    low, high = max(0, -shift), min(length, length - shift)
    told, tokens = labels[:, low:high], ids[:, low + shift : high + shift]
    counts = told != IGNORED
    if int(counts.sum()) < _FEWEST:
        return 0.0
    return float((told == tokens)[counts].double().mean())
