"""A run folder as a `Series`: all its ranks, finished or not."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from array import array
from pathlib import Path
from typing import Any

from fallline.errors import RunError
from fallline.finding import Finding
from fallline.location import Location
from fallline.runs.samples import Layout, Sample
from fallline.runs.series import Rank, Series
from fallline.runs.store import UPDATE_COLUMNS, decode, layout_from, rank_files
from fallline.runs.update import UpdateRow

__all__ = ["read_run"]


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
