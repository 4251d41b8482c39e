"""A run as numbers over updates: what `check_series` of a rule gets.

Built live from the recorder's rows (bounded), or from a run folder with all its ranks. A `Track` is one
optimizer on one rank: a program with two optimizers on four ranks makes eight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fallline.finding import Finding
from fallline.location import Location
from fallline.runs.attempts import Attempt
from fallline.runs.flight import Flight
from fallline.runs.prints import Print
from fallline.runs.rank import RankState
from fallline.runs.samples import Sample
from fallline.runs.store import BUCKET
from fallline.runs.update import UpdateRow

__all__ = ["Rank", "Series", "Track"]

LIVE_ROWS = 8_192
LIVE_SAMPLE_VALUES = 4_000_000


@dataclass(slots=True)
class Track:
    """The updates of one optimizer on one rank, oldest first; long runs are thinned, extremes stay."""

    rank: int
    optimizer: str
    rows: list[UpdateRow] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    fingerprints: dict[int, list[float]] = field(default_factory=dict)
    facts: dict[str, Any] = field(
        default_factory=dict
    )  # of the optimizer: type, model, wrapper, ...
    totals: dict[str, Any] = field(
        default_factory=dict
    )  # exact counts, also of rows that were thinned

    @property
    def at(self) -> Location:
        """The user's line of the last step."""
        return next((r.at for r in reversed(self.rows) if r.at is not None), Location("", 1))

    @property
    def loss_at(self) -> Location:
        """The user's line of the last backward; of the step where that is not known."""
        return next((r.loss_at for r in reversed(self.rows) if r.loss_at is not None), self.at)

    @property
    def clip_at(self) -> Location:
        """The user's line of the last clip; of the step where that is not known."""
        return next((r.clip_at for r in reversed(self.rows) if r.clip_at is not None), self.at)

    @property
    def batch_at(self) -> Location:
        """The user's line that took the last batch from a loader; of the step where that is not known."""
        return next((r.batch_at for r in reversed(self.rows) if r.batch_at is not None), self.at)

    @property
    def type(self) -> str:
        return str(self.facts.get("type", ""))

    def norm(self, row: UpdateRow) -> float | None:
        """Norm of all gradients before clipping, where it was measured."""
        found: float | None = row.clip_norm if row.clip_norm is not None else row.grad_norm
        return found

    def norms(self) -> list[tuple[int, float]]:
        """(update, gradient norm): as clipping or the guard measured it, else from samples."""
        found = [(r.index, n) for r in self.rows if (n := self.norm(r)) is not None]
        if len(found) * 2 >= len(self.rows) or len(found) >= len(self.samples):
            return found
        return [(s.index, n) for s in self.samples if (n := s.total_norm()) == n]

    @property
    def norms_are_parts(self) -> bool:
        """Not all ranks were read, and what this one measured is the norm of its shards. Clipping knows the whole norm."""
        clipped = any(r.clip_norm is not None for r in self.rows)
        return bool(self.facts.get("alone")) and not clipped

    def losses(self) -> list[tuple[int, float]]:
        """(update, loss) where the loss is known; non-finite ones are kept."""
        return [(r.index, r.loss) for r in self.rows if r.loss is not None]

    def typical(self) -> dict[str, float]:
        """Seconds of each part of a typical update, which add up to it: the mean over the middle half of the recent updates, ordered by their time."""
        rows = [r.seconds for r in self.rows if r.seconds]
        whole = [s for s in rows if "other" in s] or rows  # the first update has no beginning
        taken = sorted(whole[-2000:], key=lambda s: sum(s.values()))
        middle = taken[len(taken) // 4 : len(taken) - len(taken) // 4]
        parts = dict.fromkeys(name for s in middle for name in s)
        return {name: sum(s.get(name, 0.0) for s in middle) / len(middle) for name in parts}

    def append(self, row: UpdateRow) -> None:
        """One more update of a live run."""
        self.rows.append(row)
        totals = self.totals
        totals["updates"] = max(totals.get("updates", 0), row.index) + 1  # some have no row
        totals["skipped"] = totals.get("skipped", 0) + row.skipped
        # the norm of an update that was not applied is not finite: it says nothing about clipping
        if not row.skipped and row.clip_norm is not None and row.clip_threshold is not None:
            totals["clips"] = totals.get("clips", 0) + 1
            totals["clipped"] = totals.get("clipped", 0) + (row.clip_norm > row.clip_threshold)
        if row.sample is not None:
            self.samples.append(row.sample)
            row.sample = None
            if (
                len(self.samples) * len(self.samples[-1].values) > LIVE_SAMPLE_VALUES
                and len(self.samples) > 8
            ):
                del self.samples[1 : len(self.samples) // 2 : 2]
        if row.fingerprint is not None:
            self.fingerprints[row.index], row.fingerprint = row.fingerprint, None
        if len(self.rows) > LIVE_ROWS:
            self.rows[: LIVE_ROWS // 2] = _thinned(self.rows[: LIVE_ROWS // 2], self.norm)


def _thinned(rows: list[UpdateRow], norm: Any) -> Iterator[UpdateRow]:
    """Of each few neighbours, those with the smallest and largest loss and norm."""

    def size(value: float | None) -> float:
        return -math.inf if value is None else value if math.isfinite(value) else math.inf

    for start in range(0, len(rows), BUCKET):
        bucket = rows[start : start + BUCKET]
        by_loss = sorted(bucket, key=lambda r: size(r.loss))
        by_norm = sorted(bucket, key=lambda r: size(norm(r)))
        stay = {id(r) for r in (by_loss[0], by_loss[-1], by_norm[0], by_norm[-1])}
        yield from (r for r in bucket if id(r) in stay)


@dataclass(slots=True)
class Rank:
    """One process of the run."""

    number: int
    meta: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    prints: list[Print] = field(default_factory=list)

    @property
    def status(self) -> str:
        """ "finished", "raised ...", or "" for a run that was killed or still continues."""
        return str(self.meta.get("status", ""))


@dataclass(slots=True)
class Series:
    """A whole run."""

    tracks: list[Track] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)
    folder: Path | None = None
    states: dict[int, RankState] = field(default_factory=dict)  # where each rank was last
    attempts: list[Attempt] = field(default_factory=list)  # that came before this one
    flights: dict[int, Flight] = field(default_factory=dict)  # what torch recorded of them

    @property
    def world(self) -> int:
        return max((int(r.meta.get("world", 1)) for r in self.ranks), default=1)

    @property
    def meta(self) -> dict[str, Any]:
        """What the first rank says about the run."""
        return self.ranks[0].meta if self.ranks else {}

    def track(self, rank: int, optimizer: str) -> Track:
        """That track; a new one when it is not there yet."""
        for track in self.tracks:
            if track.rank == rank and track.optimizer == optimizer:
                return track
        track = Track(rank, optimizer)
        self.tracks.append(track)
        return track

    def append(self, row: UpdateRow, rank: int = 0) -> None:
        """One more update of a live run."""
        self.track(rank, row.optimizer).append(row)

    def of_rank(self, number: int) -> list[Track]:
        return [t for t in self.tracks if t.rank == number]
