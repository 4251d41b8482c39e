"""A run as numbers over updates: what `check_series` of a rule gets.

Built live from the recorder's rows (bounded), or from a run folder with all its ranks. A `Track` is one
optimizer on one rank: a program with two optimizers on four ranks makes eight.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fallline.errors import RunError
from fallline.events import Event, Kind, make
from fallline.finding import Finding
from fallline.location import Location
from fallline.watcher.recorder import UpdateRow
from fallline.watcher.samples import Layout, Sample
from fallline.watcher.store import BUCKET, UPDATE_COLUMNS, decode, layout_from, rank_files

__all__ = ["Rank", "Series", "Track", "read_run"]

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

    def losses(self) -> list[tuple[int, float]]:
        """(update, loss) where the loss is known; non-finite ones are kept."""
        return [(r.index, r.loss) for r in self.rows if r.loss is not None]

    def append(self, row: UpdateRow) -> None:
        """One more update of a live run."""
        self.rows.append(row)
        totals = self.totals
        totals["updates"] = totals.get("updates", 0) + 1
        totals["skipped"] = totals.get("skipped", 0) + row.skipped
        if row.clip_norm is not None and row.clip_threshold is not None:
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
    events: list[Event] = field(default_factory=list)

    @property
    def status(self) -> str:
        """ "finished", "raised ...", or "" for a run that was killed or still goes on."""
        return str(self.meta.get("status", ""))


@dataclass(slots=True)
class Series:
    """A whole run."""

    tracks: list[Track] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)
    folder: Path | None = None

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


def read_run(folder: Path) -> Series:
    """The run in this folder, of all ranks, finished or not."""
    files = rank_files(folder) if folder.is_dir() else {}
    if not files:
        raise RunError(
            f"{folder} is not a run folder: `fallline run --out {folder} SCRIPT` makes one"
        )
    series = Series(folder=folder)
    for number, path in files.items():
        try:
            _read_rank(series, number, path)
        except sqlite3.DatabaseError as error:
            if len(files) == 1:
                raise RunError(
                    f"{path} cannot be read ({error}): nothing is left of this run; `fallline run train.py` watches it anew"
                ) from error
            series.ranks.append(Rank(number, {"status": f"unreadable: {error}"}))
    return series


def _connect(path: Path) -> sqlite3.Connection:
    """Reading must work on a folder that cannot be written, and must never change a run."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        connection.execute("select count(*) from meta")
    except sqlite3.OperationalError as error:
        connection.close()
        if "no such table" in str(error):
            raise sqlite3.DatabaseError("the run wrote nothing") from error
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        connection.execute("select count(*) from meta")
    return connection


def _read_rank(series: Series, number: int, path: Path) -> None:
    with contextlib.closing(_connect(path)) as db:
        rank = Rank(
            number,
            {key: json.loads(value) for key, value in db.execute("select key, value from meta")},
        )
        rank.findings = [
            Finding.from_dict(json.loads(b)) for (b,) in db.execute("select body from findings")
        ]
        rank.events = [
            _event(json.loads(b)) for (b,) in db.execute("select body from events order by id")
        ]
        series.ranks.append(rank)
        places = {
            id: Location(p, line, function=f)
            for id, p, line, f in db.execute("select * from places")
        }
        for values in db.execute("select * from updates order by rowid"):
            row = _row(dict(zip(UPDATE_COLUMNS, values, strict=True)), places)
            series.track(number, row.optimizer).rows.append(row)
        layouts: dict[tuple[str, int], Layout] = {
            (optimizer, id): layout_from(id, json.loads(parameters))
            for optimizer, id, parameters in db.execute("select * from layouts")
        }
        for optimizer, index, layout, _, signal, blob in db.execute(
            "select * from samples order by rowid"
        ):
            sample = Sample(layouts[optimizer, layout], values=array("f", blob), index=index)
            sample.signal = math.nan if signal is None else float(signal)
            series.track(number, optimizer).samples.append(sample)
        for optimizer, index, blob in db.execute("select * from fingerprints order by rowid"):
            series.track(number, optimizer).fingerprints[index] = array("d", blob).tolist()
    for track in series.of_rank(number):
        track.facts = dict(rank.meta.get(track.optimizer) or {})
        track.totals = dict(
            rank.meta.get(f"totals:{track.optimizer}") or {"updates": len(track.rows)}
        )


def _row(found: dict[str, Any], places: dict[int, Location]) -> UpdateRow:
    seconds = {n: found[n] for n in ("data", "forward", "backward", "step") if found[n] is not None}
    return UpdateRow(
        index=found["idx"],
        optimizer=found["optimizer"],
        at=places.get(found["at"]),
        loss_at=places.get(found["loss_at"]),
        time=found["time"],
        loss=decode(found["loss"]),
        lr=decode(found["lr"]),
        scale=decode(found["scale"]),
        skipped=bool(found["skipped"]),
        clip_norm=decode(found["clip_norm"]),
        clip_threshold=decode(found["clip_threshold"]),
        grad_norm=decode(found["grad_norm"]),
        seconds=seconds,
        memory=found["memory"],
        graphs=found["graphs"],
        micro_batches=found["micro_batches"],
        all_reduces=found["all_reduces"],
    )


def _event(body: dict[str, Any]) -> Event:
    facts: dict[str, Any] = dict(body["facts"])
    if isinstance(facts.get("parameters"), list):
        facts["parameters"] = frozenset(facts["parameters"])
    boundary = facts.get("boundary")
    if isinstance(boundary, list):
        facts["boundary"] = _location(boundary)
    return make(
        Kind(body["kind"]),
        _location(body["at"]),
        optimizer=body.get("optimizer"),
        scaler=body.get("scaler"),
        model=body.get("model"),
        scheduler=body.get("scheduler"),
        loader=body.get("loader"),
        callers=tuple(_location(c) for c in body.get("callers", ())),
        **facts,
    )


def _location(parts: list[Any]) -> Location:
    path, line, column, function = parts
    return Location(path, line, column, function=function)
