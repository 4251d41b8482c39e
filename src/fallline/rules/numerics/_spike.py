"""What came before a spike of the loss, and which samples made it: the causes of FL624, the first one first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from fallline.rules._trends import finite, median

__all__ = ["causes", "rises", "seen_at", "spoken"]

BEFORE = 20  # updates that can have led to it
RAISED = 2.0  # times the learning rate before
GREW = 3.0  # times a layer's own gradients or updates before
ALONE = 0.5  # of the batch's loss, made by one sample
ABOVE = 10.0  # times the median loss of the batch


def seen_at(run: Any, track: Any, index: int) -> dict[str, Any] | None:
    """What the watcher saw of the batch of this update; of several micro-batches, the worst."""
    meta: dict[str, Any] = next((rank.meta for rank in run.ranks if rank.number == track.rank), {})
    seen = [
        spike
        for spike in meta.get("spikes") or ()
        if isinstance(spike, dict) and (spike.get("updates") or {}).get(track.optimizer, 0) == index
    ]
    return max(seen, key=lambda s: float(s.get("loss") or 0.0), default=None)


def causes(track: Any, index: int, seen: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Each with `cause`, `text` and, where it was before the spike, `update`; the first cause first."""
    before = sorted(_changes(track, index, seen or {}), key=lambda c: c["update"])
    batch = _batch(seen)
    if batch is not None and batch["cause"] == "sample":
        return [batch, *before]
    return [*before, *([batch] if batch is not None else [])]


def rises(track: Any) -> set[int]:
    """The updates that took a much larger learning rate than the one before."""
    rated = [r for r in track.rows if r.lr]
    return {new.index for old, new in pairwise(rated) if new.lr >= RAISED * old.lr}


def spoken(found: list[dict[str, Any]], seen: dict[str, Any] | None) -> str:
    """The first two causes in words, and where to look."""
    said = " ".join(cause["text"] for cause in found[:2])
    if not seen:
        return f"{said} Look at the batch of that update.".strip()
    if not any(cause["cause"] == "sample" for cause in found[:2]):
        said = f"{said} {_who(seen)}"
    if not any(cause["cause"] in ("learning-rate", "loss-scale") for cause in found):
        said += " Neither the learning rate nor the loss scale had changed."
    return said.strip()


def _who(seen: dict[str, Any]) -> str:
    indices = seen.get("indices")
    if indices:
        more = ", ..." if len(indices) > 8 else ""
        return f"The batch held samples {', '.join(map(str, indices[:8]))}{more}."
    if seen.get("fingerprint"):
        return f"The model was called with {seen['fingerprint']}."
    return ""


def _batch(seen: dict[str, Any] | None) -> dict[str, Any] | None:
    """Whether one sample made the loss, or all of them."""
    samples = (seen or {}).get("samples") or []
    if not samples:
        return None
    first, usual = samples[0], (seen or {}).get("median")
    odd = first.get("unusual")
    if usual is None:
        text = f"{_sample(first)} stands out: {odd}."
        return {"cause": "sample", "text": text, "samples": samples} if odd else None
    loss, share = float(first["loss"]), float(first.get("share") or 0.0)
    if share >= ALONE and loss >= ABOVE * abs(usual):
        text = f"{_sample(first)} makes {share:.0%} of it: its loss is {loss:.4g}, the median of its batch {usual:.4g}"
        return {
            "cause": "sample",
            "text": f"{text}{f'; {odd}' if odd else ''}.",
            "samples": samples,
        }
    text = f"No single sample makes it (highest loss {loss:.4g}, median of the batch {usual:.4g}): the weights changed, not the data."
    return {"cause": "weights", "text": text, "samples": samples}


def _sample(sample: dict[str, Any]) -> str:
    place = f"position {sample['position']} of the batch"
    return (
        place.capitalize() if sample.get("index") is None else f"Sample {sample['index']} ({place})"
    )


def _changes(track: Any, index: int, seen: dict[str, Any]) -> Iterator[dict[str, Any]]:
    rows = [r for r in track.rows if index - BEFORE <= r.index <= index]
    for old, new in pairwise(rows):
        if old.lr and new.lr and new.lr >= RAISED * old.lr:
            text = f"The learning rate rose from {old.lr:g} to {new.lr:g} at update {new.index}."
            yield {"cause": "learning-rate", "text": text, "update": new.index}
        if old.scale and new.scale and new.scale != old.scale:
            text = f"The loss scale went from {old.scale:g} to {new.scale:g} at update {new.index}."
            yield {"cause": "loss-scale", "text": text, "update": new.index}
    yield from _layers(track, index)
    yield from _moments(track, index, seen)


def _layers(track: Any, index: int) -> Iterator[dict[str, Any]]:
    """The layer whose gradients or updates had grown most before the spike."""
    past = [s for s in track.samples if s.index < index][-12:]
    if len(past) < 4 or len({s.layout.id for s in past}) != 1:
        return
    last, names = past[-1], [p.name for p in past[-1].layout.parameters]
    for column, words in (("norm", "The gradient of"), ("ratio", "The update of")):
        grown = []
        for i, name in enumerate(names):
            usual, now = (
                median(finite([s.column(column)[i] for s in past[:-1]])),
                last.column(column)[i],
            )
            if usual > 0 and math.isfinite(now) and now >= GREW * usual:
                grown.append((now / usual, name))
        if grown:
            factor, name = max(grown)
            text = f"{words} '{name}' had already grown to {factor:.2g} times its usual size at update {last.index}."
            yield {"cause": column, "text": text, "update": last.index, "parameter": name}


def _moments(track: Any, index: int, seen: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Second moments of Adam that lag far behind the gradients: the update is larger than the learning rate says."""
    moments = seen.get("moments") or {}
    past = [s for s in track.samples if s.index < index][-1:]
    behind = []
    for sample in past:
        for parameter, norm in zip(sample.layout.parameters, sample.column("norm"), strict=True):
            expected = moments.get(parameter.name)
            size = norm / max(1, parameter.count) ** 0.5
            if expected and math.isfinite(size) and size >= GREW * expected:
                behind.append((size / expected, parameter.name, sample.index))
    if behind:
        factor, name, update = max(behind)
        text = f"The gradient of '{name}' was {factor:.2g} times what the optimizer's second moments expected at update {update}."
        yield {"cause": "second-moments", "text": text, "update": update, "parameter": name}
