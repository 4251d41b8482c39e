"""A run folder as a `Series`: all its ranks, finished or not.

The folder may come from anybody. Files are opened for reading only, only tables are read, by the columns that we write, for
a limited time; `schema` looks at every value.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fallline.errors import RunError
from fallline.finding import Finding
from fallline.location import Location
from fallline.runs import schema
from fallline.runs.attempts import earlier_attempts
from fallline.runs.flight import read_flights
from fallline.runs.many import outstanding
from fallline.runs.rank import RankState, read_ranks
from fallline.runs.samples import Sample
from fallline.runs.schema import Damaged
from fallline.runs.series import Rank, Series
from fallline.runs.shards import join_shards
from fallline.runs.store import LATER, MAX_UPDATES, UPDATE_COLUMNS, rank_files
from fallline.runs.update import UpdateRow
from fallline.untrusted import printable

__all__ = ["read_run"]

SECONDS = 60.0  # for one rank; the largest that we write takes two
_STRIDE = 100_000  # steps of SQLite between two looks at the clock
_LARGEST_FILE = 4 << 30
_LARGEST_VALUE = 256 << 20

# table → (columns, most rows): what `store` writes, with room to spare
_TABLES = {
    "meta": (("key", "value"), 100_000),
    "places": (("id", "path", "line", "function"), 100_000),
    "updates": (UPDATE_COLUMNS, 2 * MAX_UPDATES),
    "layouts": (("optimizer", "id", "parameters"), 10_000),
    "samples": (("optimizer", "idx", "layout", "signal", "vals"), 1_000_000),
    "fingerprints": (("optimizer", "idx", "vals"), 1_000_000),
    "prints": (("kind", "name", "idx", "number", "vals"), 100_000),
    "findings": (("body",), 10_000),
}
_LATER = frozenset({"prints"})  # tables that runs of older versions do not have


def read_run(folder: Path, *more: Path, flights: Path | None = None) -> Series:
    """The run in this folder, of all ranks, finished or not. `more`: what other machines have kept of it.

    `flights`: where torch's flight recorder has left its dumps, if not in the run folder.
    """
    files: dict[int, Path] = {}
    for part in (folder, *more):
        there = rank_files(part) if part.is_dir() else {}
        if not there:
            raise RunError(
                f"{part} is not a run folder: `fallline run --out {part} SCRIPT` makes one"
            )
        files |= there
    series = Series(folder=folder, states=read_ranks((folder, *more)))
    series.attempts = earlier_attempts(folder)
    series.flights = read_flights([folder, *more] if flights is None else [flights])
    opened = outstanding(series.states, sorted(files))
    for number, path in sorted(files.items()):
        if number not in opened:
            series.ranks.append(_in_short(series.states[number]))
            continue
        found = Series()
        try:
            _read_rank(found, number, path)
        except (sqlite3.Error, OSError, ValueError, MemoryError) as error:  # or not UTF-8
            why = printable(" ".join(str(error).split())) or type(error).__name__
            if len(files) == 1:
                raise RunError(
                    f"{path} cannot be read ({why}), and the report needs it; watch the run again with `fallline run train.py`"
                ) from error
            series.ranks.append(Rank(number, {"status": f"unreadable: {why}"}))
        else:
            series.ranks += found.ranks
            series.tracks += [track for track in found.tracks if track.rows]
    join_shards(series, complete=len(opened) >= series.world)
    return series


def _in_short(state: RankState) -> Rank:
    """A rank whose own file stays closed."""
    known: dict[str, Any] = {
        "rank": state.rank,
        "world": state.world,
        "pid": state.pid,
        "started": state.started,
    }
    if state.ended:
        known |= {"status": state.ended, "ended": state.written}
    return Rank(state.rank, known, [Finding.from_dict(f) for f in state.findings])


class _Reader:
    """One rank's file, open for reading."""

    def __init__(self, path: Path) -> None:
        known = os.stat(path)
        if not stat.S_ISREG(known.st_mode):
            raise Damaged("it is not a regular file")
        if known.st_size > _LARGEST_FILE:
            raise Damaged(f"it is larger than {_LARGEST_FILE:,} bytes")
        self.until = time.monotonic() + SECONDS
        self.db = self._connect(path)

    def _connect(self, path: Path) -> sqlite3.Connection:
        """Reading must work on a folder that cannot be written, and must never change a run."""
        address = f"{path.absolute().as_uri()}?mode=ro"
        try:
            return self._opened(address)
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                raise
            # a journal that cannot be replayed here: what is in the file itself
            return self._opened(f"{address}&immutable=1")

    def _opened(self, address: str) -> sqlite3.Connection:
        db = sqlite3.connect(address, uri=True)
        try:
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
            db.set_progress_handler(lambda: time.monotonic() > self.until, _STRIDE)
            for pragma in ("query_only=on", "trusted_schema=off", "cell_size_check=on"):
                db.execute(f"pragma {pragma}")
            kinds = dict(db.execute("select name, type || ':' || sql from sqlite_master"))
            if not kinds:
                raise Damaged("the run ended before it wrote anything")
            self.missing = _LATER - kinds.keys()
            for table, (columns, _) in _TABLES.items():
                if table in self.missing:
                    continue
                _check_table(db, table, columns, str(kinds.get(table)))
        except BaseException:
            db.close()
            raise
        return db

    def rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a table in the order of writing, by the columns that we know."""
        columns, most = _TABLES[table]
        if table in self.missing:
            return
        there = {row[1] for row in self.db.execute(f'pragma table_xinfo("{table}")')}
        asked = ", ".join(f'"{column}"' if column in there else "null" for column in columns)
        for n, row in enumerate(
            self.db.execute(f'select {asked} from "{table}" order by rowid limit {most + 1}')
        ):
            if n == most:
                raise Damaged(f"the table {table} has more than {most:,} rows")
            yield row


def _check_table(db: sqlite3.Connection, table: str, columns: tuple[str, ...], kind: str) -> None:
    """A plain table with our columns: neither a view, which could compute for ever, nor a virtual or computed one."""
    if kind == "None":
        raise Damaged(f"the table {table} is missing")
    if not kind.lower().startswith("table:create table"):
        raise Damaged(f"{table} is not a table")
    there = {row[1]: row[6] for row in db.execute(f'pragma table_xinfo("{table}")')}
    for column in columns:
        if there.get(column) != 0 and (column in there or column not in LATER):
            raise Damaged(f"the table {table} has no column {column}")


def _read_rank(series: Series, number: int, path: Path) -> None:
    reader = _Reader(path)
    with contextlib.closing(reader.db):
        rank = Rank(number, {k: v for k, v in map(_meta, reader.rows("meta")) if v is not None})
        rank.findings = [
            schema.finding(schema.json_of(body, "a finding"), "a finding")
            for (body,) in reader.rows("findings")
        ]
        rank.prints = [schema.fingerprint(row) for row in reader.rows("prints")]
        series.ranks.append(rank)
        _read_updates(series, number, reader)
        _read_samples(series, number, reader)
    for track in series.of_rank(number):
        track.facts = dict(rank.meta.get(track.optimizer) or {})
        track.totals = dict(
            rank.meta.get(f"totals:{track.optimizer}") or {"updates": len(track.rows)}
        )
        counts = rank.meta.get("updates")
        made = counts.get(track.optimizer) if isinstance(counts, dict) else None
        if isinstance(made, int):  # with those that were made at rest, at the end of the run
            track.totals["updates"] = max(track.totals.get("updates", 0), made)


def _meta(row: tuple[Any, ...]) -> tuple[str, Any]:
    key = schema.text(row[0], "a key")
    return key, schema.meta(key, schema.json_of(row[1], f"'{key}'"))


def _read_updates(series: Series, number: int, reader: _Reader) -> None:
    places = {
        id: Location(
            schema.text(path, "a path"),
            schema.count(line, "a line"),
            function=schema.text(function, "a function"),
        )
        for id, path, line, function in reader.rows("places")
    }
    for values in reader.rows("updates"):
        row = _row(dict(zip(UPDATE_COLUMNS, values, strict=True)), places)
        series.track(number, row.optimizer).rows.append(row)


def _read_samples(series: Series, number: int, reader: _Reader) -> None:
    layouts = {
        (optimizer, id): schema.layout(id, schema.json_of(parameters, "a layout"))
        for optimizer, id, parameters in reader.rows("layouts")
    }
    for optimizer, index, id, signal, blob in reader.rows("samples"):
        layout = layouts.get((optimizer, id))
        if layout is None:
            raise Damaged("a sample has no layout")
        sample = Sample(layout, values=schema.sample(blob, layout), index=_index(index))
        known = schema.optional(schema.real, signal, "the signal of a sample")
        sample.signal = float("nan") if known is None else known
        series.track(number, _optimizer(optimizer)).samples.append(sample)
    for optimizer, index, blob in reader.rows("fingerprints"):
        prints = schema.floats(blob, "d", "a fingerprint").tolist()
        series.track(number, _optimizer(optimizer)).fingerprints[_index(index)] = prints


def _index(value: Any) -> int:
    return schema.count(value, "the number of an update")


def _optimizer(value: Any) -> str:
    return schema.text(value, "the name of an optimizer")


def _row(found: dict[str, Any], places: dict[int, Location]) -> UpdateRow:
    def known(check: Callable[[Any, str], Any], name: str) -> Any:
        return schema.optional(check, found[name], name)

    parts = ("data", "forward", "backward", "step", "other")
    seconds = {name: known(schema.seconds, name) for name in parts if found[name] is not None}
    return UpdateRow(
        index=_index(found["idx"]),
        optimizer=_optimizer(found["optimizer"]),
        at=places.get(found["at"]),
        loss_at=places.get(found["loss_at"]),
        time=schema.seconds(found["time"], "time"),
        loss=known(schema.real, "loss"),
        lr=known(schema.real, "lr"),
        scale=known(schema.real, "scale"),
        skipped=bool(found["skipped"]),
        clip_norm=known(schema.real, "clip_norm"),
        clip_threshold=known(schema.real, "clip_threshold"),
        grad_norm=known(schema.real, "grad_norm"),
        seconds=seconds,
        memory=known(schema.count, "memory"),
        graphs=known(schema.count, "graphs"),
        micro_batches=known(schema.count, "micro_batches"),
        all_reduces=known(schema.count, "all_reduces"),
        clip_at=places.get(found["clip_at"]),
        batch_at=places.get(found["batch_at"]),
    )
