"""A run in a few numbers, as everybody asks for them first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fallline.runs.series import Series, Track
from fallline.show.numbers import bytes_text, number, seconds_text
from fallline.show.terminal import counted

__all__ = ["JUDGED", "Overview", "longest", "measured", "overview"]

JUDGED = 50  # updates: with fewer, most rules about numbers have too little to judge
HOPELESS = 0.9  # of the updates were not applied: what the others did is not training


@dataclass(frozen=True, slots=True)
class Overview:
    """The few numbers that everybody asks for first. None: not known."""

    updates: int
    skipped: int
    first_loss: float | None
    last_loss: float | None
    norm: float | None  # median
    threshold: float | None
    clipped: float | None  # share of the updates below that were clipped
    clips: int  # updates that were applied, and their norm compared with a threshold
    rate: float | None
    scale: float | None
    update_seconds: float | None  # of a typical update, from the one before it
    memory: int | None
    duration: float | None
    status: str


def overview(series: Series, track: Track | None) -> Overview:
    """Of one optimizer; of nothing when the run made no update."""
    rows = track.rows if track is not None else []
    totals = track.totals if track is not None else {}
    losses = [r.loss for r in rows if r.loss is not None]
    norms = sorted(n for _, n in (track.norms() if track is not None else []) if math.isfinite(n))
    typical = track.typical() if track is not None else {}
    meta = series.meta
    ended = meta.get("ended") or (rows[-1].time if rows else None)
    clips = totals.get("clips", 0)
    tail = losses[-max(1, min(20, len(losses) // 10)) :]
    return Overview(
        updates=totals.get("updates", len(rows)),
        skipped=totals.get("skipped", 0),
        first_loss=losses[0] if losses else None,
        last_loss=sorted(tail, key=_nan_last)[len(tail) // 2] if tail else None,
        norm=norms[len(norms) // 2] if norms else None,
        threshold=next(
            (r.clip_threshold for r in reversed(rows) if r.clip_threshold is not None), None
        ),
        clipped=totals.get("clipped", 0) / clips if clips else None,
        clips=clips,
        rate=rows[-1].lr if rows else None,
        scale=next((r.scale for r in reversed(rows) if r.scale is not None), None),
        update_seconds=sum(typical.values()) if typical else None,
        memory=max((r.memory for r in rows if r.memory is not None), default=None),
        duration=ended - meta["started"] if ended and "started" in meta else None,
        status=status_of(series),
    )


def _nan_last(value: float) -> tuple[bool, float]:
    return (value != value, value)


def status_of(series: Series) -> str:
    """How the run ended, in words."""
    states = {rank.status for rank in series.ranks}
    if len(states) == 1:
        return states.pop() or "did not end by itself: killed, or still running"
    return "; ".join(
        f"rank {r.number}: {r.status or 'killed, or still running'}" for r in series.ranks[:8]
    )


def longest(series: Series) -> Track | None:
    """Of the first rank that knows its loss: of a pipeline only the last stage does."""
    known = {t.rank for t in series.tracks if any(r.loss is not None for r in t.rows)}
    return max(series.tracks, key=lambda t: (t.rank in known, -t.rank, len(t.rows)), default=None)


def measured(series: Series, track: Track) -> dict[str, str]:
    """The numbers of one optimizer that are known, in words, by their names."""
    seen = overview(series, track)
    losses = _losses_text(seen, track)
    parts = f", of rank {track.rank}'s shards alone" if track.norms_are_parts else ""
    known = (
        ("updates", seen.updates, _updates_text(seen)),
        ("loss", seen.first_loss, losses),
        ("gradient norm", seen.norm, f"median {number(seen.norm)}{parts}{_clip_text(seen)}"),
        ("learning rate", seen.rate, number(seen.rate)),
        ("loss scale", seen.scale, number(seen.scale)),
        (
            "time per update",
            seen.update_seconds,
            seconds_text(seen.update_seconds) + _shares(track),
        ),
        ("memory", seen.memory, bytes_text(seen.memory)),
    )
    return {label: text for label, value, text in known if value is not None}


def _losses_text(seen: Overview, track: Track) -> str:
    """From the first update to the last. A run of LBFGS may be a single one: then within it."""
    first, evaluations = track.facts.get("first_loss"), track.facts.get("evaluations")
    if seen.updates == 1 and isinstance(first, float) and isinstance(evaluations, int):
        return f"{number(first)} → {number(seen.last_loss)} in the {evaluations:,} evaluations of this update"
    return f"{number(seen.first_loss)} → {number(seen.last_loss)}"


def _updates_text(seen: Overview) -> str:
    if seen.skipped * 2 <= seen.updates:
        return f"{seen.updates:,}" + (f", {seen.skipped:,} of them skipped" if seen.skipped else "")
    lost = ": the model did not train" if seen.skipped >= HOPELESS * seen.updates else ""
    return f"{seen.skipped:,} of {counted(seen.updates, 'update')} were not applied{lost}"


def _clip_text(seen: Overview) -> str:
    # clipping at infinity measures the norm, and does nothing else: the Hugging Face Trainer's max_grad_norm=0
    if seen.clipped is None or seen.threshold is None or math.isinf(seen.threshold):
        return ""
    often = f"{seen.clipped:.0%} of the updates"
    if seen.clips < JUDGED or 0 < seen.clipped < 0.005:  # too few for a percentage
        often = f"{round(seen.clipped * seen.clips):,} of {counted(seen.clips, 'applied update')}"
    return f", clipped at {number(seen.threshold)} in {often}"


def _shares(track: Track) -> str:
    """Of a typical update; they add up to all of it."""
    typical = track.typical()
    whole = sum(typical.values())
    if not whole:
        return ""
    parts = (f"{part} {s / whole:.0%}" for part, s in typical.items() if s / whole >= 0.005)
    return f" ({', '.join(parts)})"
