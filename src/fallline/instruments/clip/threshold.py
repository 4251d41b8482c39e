"""A clip threshold from a run's own gradient norms: a quantile, with the share of updates that it would have clipped.

Reads a run folder and nothing else, so it needs no torch. It says so where the norms cannot carry a proposal: too few of them, measured
after clipping, or without any outlier that clipping could catch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from fallline.errors import UsageError
from fallline.runs.read import read_run
from fallline.runs.series import Series, Track

__all__ = ["Clip", "ClipProposal", "propose_clip", "propose_from_norms", "propose_from_series"]

LEAST = 50  # norms for a proposal
FEW = 200  # below, the tail is a handful of updates
SPIKE = 3.0  # the largest norm, in medians, from which on there is something to catch
DRIFT = 2.0  # the medians of the two halves are further apart than this: only the later half is now
QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass
class Clip:
    """The norms of one optimizer, and the threshold that they suggest; none where they suggest none."""

    optimizer: str
    updates: int
    norms: int  # that were measured, finite, and before clipping
    quantile: float
    max_norm: float | None = None
    clipped: float | None = None  # the share of these updates that it would have clipped
    quantiles: dict[str, float] = field(default_factory=dict)  # "0.9" → norm
    largest: float | None = None
    from_update: int = 0  # the first update that counts
    now: float | None = None  # the threshold that the run used last
    clipped_now: float | None = None  # the share of updates that it clipped
    nonfinite: int = 0
    verdict: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass
class ClipProposal:
    """What `propose_clip` found, one answer for each optimizer."""

    folder: str
    clips: list[Clip]
    partial: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": self.folder,
            "partial": self.partial,
            "optimizers": [asdict(clip) for clip in self.clips],
        }

    def text(self) -> str:
        lines: list[str] = []
        for clip in self.clips:
            name = f" ({clip.optimizer})" if len(self.clips) > 1 else ""
            lines += [f"clip{name}: {clip.verdict}", *(f"  {note}" for note in clip.notes)]
            if clip.quantiles:
                since = f" since update {clip.from_update}" if clip.from_update else ""
                lines += ["", f"gradient norms before clipping, {clip.norms} updates{since}"]
                for name, norm in clip.quantiles.items():
                    share = 1 - float(name)
                    lines.append(
                        f"  {norm:>10.4g}  {f'{float(name):.0%}':>4} are smaller; as max_norm it would have clipped {share:.0%}"
                    )
                lines.append(f"  {clip.largest:>10.4g}  the largest")
            lines.append("")
        return "\n".join(lines)


def propose_clip(folder: str | Path, *, quantile: float = 0.9) -> ClipProposal:
    """`max_norm` from the run in this folder (`fallline run --out DIR` makes one)."""
    _check(quantile)  # before a folder is read
    return propose_from_series(read_run(Path(folder)), quantile=quantile, shown=str(folder))


def propose_from_series(series: Series, *, quantile: float, shown: str) -> ClipProposal:
    """The same from a run that was read already."""
    _check(quantile)
    first = min((track.rank for track in series.tracks), default=0)
    clips = [_of_track(track, quantile) for track in series.of_rank(first)]
    if not clips:
        raise UsageError(f"the run in {shown} made no update: there are no norms to look at")
    return ClipProposal(shown, clips, partial=not all(rank.status for rank in series.ranks))


def propose_from_norms(norms: Sequence[float], *, quantile: float = 0.9) -> Clip:
    """`max_norm` from norms that were measured before clipping, oldest first."""
    _check(quantile)
    clip = Clip("", updates=len(norms), norms=0, quantile=quantile)
    return _propose(clip, list(enumerate(norms)))


def _check(quantile: float) -> None:
    if not 0.5 <= quantile < 1:
        raise UsageError(
            f"a quantile of {quantile:g} would clip {1 - quantile:.0%} of the updates: give one from 0.5 up to, and without, 1"
        )


def _of_track(track: Track, quantile: float) -> Clip:
    rows = [row for row in track.rows if not row.skipped]
    updates = int(track.totals.get("updates", len(track.rows)))
    clip = Clip(track.optimizer, updates=updates, norms=0, quantile=quantile)
    before = [(r.index, norm) for r in rows if (norm := _unclipped(r)) is not None]
    if len(before) < len(track.samples) and not any(r.clip_threshold is not None for r in rows):
        before = [(s.index, norm) for s in track.samples if (norm := s.total_norm()) == norm]
    clips = int(track.totals.get("clips", 0))
    if clips:
        clip.now = next((r.clip_threshold for r in reversed(rows) if r.clip_threshold), None)
        clip.clipped_now = int(track.totals.get("clipped", 0)) / clips
    if not before and any(r.clip_threshold is not None for r in rows):
        clip.verdict = (
            "no proposal: the run clipped in a way that does not show the norm before (by value, or with its own code), and norms "
            "after clipping say nothing about the threshold. Run it once without."
        )
        return clip
    _propose(clip, before)
    if updates > len(track.rows):
        clip.notes.append(
            f"the run was long: of its {updates} updates {len(track.rows)} are kept, the extremes among them, so the tail looks "
            "heavier than it was"
        )
    if clip.now is not None and clip.clipped_now is not None:
        clip.notes.append(
            f"the run clipped at {clip.now:g}, which changed {clip.clipped_now:.0%} of its updates; the norms here are from before that"
        )
    return clip


def _unclipped(row: Any) -> float | None:
    """The norm before clipping; None where only what clipping left is known."""
    if row.clip_norm is not None:
        return float(row.clip_norm)
    if row.clip_threshold is not None or row.grad_norm is None:
        return None
    return float(row.grad_norm)


def _propose(clip: Clip, found: list[tuple[int, float]]) -> Clip:
    finite = [(index, norm) for index, norm in found if math.isfinite(norm)]
    clip.nonfinite = len(found) - len(finite)
    if clip.nonfinite:
        clip.notes.append(
            f"{clip.nonfinite} norms were not finite and are left out: no threshold helps those (`fallline run` names their origin)"
        )
    if len(finite) < LEAST:
        clip.norms = len(finite)
        clip.verdict = f"no proposal: {len(finite)} norms are too few to see a tail; {LEAST} are the least, a few hundred are good"
        return clip
    half = len(finite) // 2
    early, late = median(n for _, n in finite[:half]), median(n for _, n in finite[half:])
    if min(early, late) * DRIFT < max(early, late) and half >= LEAST:
        clip.notes.append(
            f"the norms moved (median {early:.3g} in the first half, {late:.3g} in the second): only the second half counts here"
        )
        finite = finite[half:]
        clip.from_update = finite[0][0]
    norms = sorted(norm for _, norm in finite)
    clip.norms = len(norms)
    clip.quantiles = {f"{q:g}": _quantile(norms, q) for q in sorted({*QUANTILES, clip.quantile})}
    clip.largest = norms[-1]
    middle = _quantile(norms, 0.5)
    if norms[-1] == 0:
        clip.verdict = f"nothing to clip: all {len(norms)} gradients are zero"
        return clip
    if norms[-1] <= SPIKE * middle:
        clip.verdict = (
            f"nothing to clip: the largest of {len(norms)} norms is {norms[-1]:.3g}, {norms[-1] / middle:.1f} times the median. "
            f"If you clip anyway, above {_readable(norms[-1]):g}, so that it binds only when something is wrong."
        )
        return clip
    wanted = clip.quantiles[f"{clip.quantile:g}"]
    if wanted == 0:
        clip.verdict = f"no proposal: {clip.quantile:.0%} of {len(norms)} gradients are zero"
        return clip
    clip.max_norm = _readable(wanted)
    clip.clipped = sum(norm > clip.max_norm for norm in norms) / len(norms)
    clip.verdict = (
        f"max_norm={clip.max_norm:g}, which would have clipped {clip.clipped:.1%} of {len(norms)} updates "
        f"(the largest norm was {norms[-1]:.3g}, the median {middle:.3g})"
    )
    if len(norms) < FEW:
        clip.notes.append(
            f"{len(norms)} norms are few: the tail is a handful of updates, look again after some hundred"
        )
    return clip


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two neighbours, as numpy and torch do by default."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _readable(value: float) -> float:
    """Three digits, rounded up: where many norms are the same, rounding down would clip them all."""
    exponent = math.floor(math.log10(value)) - 2
    return float(f"{math.ceil(value / 10.0**exponent - 1e-9)}e{exponent}")
