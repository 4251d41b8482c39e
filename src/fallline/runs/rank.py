"""A rank in a few kilobytes: where it is now, how long its updates take, what it has found.

One file per rank, `rank3.json`, written again every few seconds by a background thread. Whoever reads the folder knows from
these files alone which rank is slow, stuck or gone, while the run continues and after it died; a thousand of them are read in
a second. What is in them is somebody else's until it has been looked at (`schema`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fallline.files import temporary_name
from fallline.location import Location
from fallline.runs import schema
from fallline.runs.schema import Damaged
from fallline.runs.store import files_by_rank

__all__ = ["Meeting", "RankState", "Spent", "read_rank", "read_ranks", "write_rank"]

LARGEST = 256 << 10
# Of an update: `other` is what lies between the first four. `wait` is the part of `backward`, `meet` the part of `other`
# in which this rank only waits for the others.
PARTS = ("data", "forward", "backward", "step", "other")


@dataclass(slots=True)
class Meeting:
    """One collective: a call in which all ranks have to meet."""

    number: int  # of this rank's collectives over all ranks, from 0
    what: str
    at: str  # train.py:40


@dataclass(slots=True)
class Spent:
    """A line of the user's, and the share of the recent updates' time that the rank was seen on it."""

    at: Location
    share: float


@dataclass(slots=True)
class RankState:
    """One rank, a moment ago. Times are seconds since 1970; 0 and "" are "not known"."""

    rank: int
    world: int = 1
    host: str = ""
    pid: int = 0
    started: float = 0.0
    written: float = 0.0
    ended: str = ""  # how it ended; "" while it continues, or when it was killed
    updates: int = 0
    last_update: float = 0.0
    longest: float = 0.0  # seconds between two updates, at most
    doing: str = ""  # "all_reduce", "backward", "data", "step", ...
    at: Location | None = None  # the user's line
    busy: float | None = None  # share of one core that the process used since the last look
    collectives: int = 0
    met: list[Meeting] = field(default_factory=list)  # the first and the latest collectives
    seconds: dict[str, float] = field(default_factory=dict)  # of an update, by part: the median
    lines: list[Spent] = field(default_factory=list)  # on which it spends most of that
    prints: dict[int, str] = field(
        default_factory=dict
    )  # update → digest of the parameters before it
    findings: list[dict[str, Any]] = field(default_factory=list)
    launch: str = ""  # of torchrun, where it starts ranks again when one dies
    attempt: int = 0  # how often it had done so
    noted: int = (
        0  # things that only the rank's own file tells in full, such as the origin of a NaN
    )

    @property
    def idle(self) -> float:
        """Seconds without an update, when this was written."""
        since = self.last_update or self.started
        return max(0.0, self.written - since) if since else 0.0

    @property
    def own(self) -> dict[str, float]:
        """What it does itself of an update. Without knowing how long it waits for others, two of the parts say nothing."""
        seconds = self.seconds
        known = [p for p in ("data", "forward", "step") if p in seconds]
        found: dict[str, float] = {p: seconds[p] for p in known}
        for part, waited in (("backward", "wait"), ("other", "meet")):
            if part in seconds and waited in seconds:
                found[part] = max(0.0, seconds[part] - seconds[waited])
        return found

    @property
    def waits(self) -> bool:
        """In a call that ends when other ranks come."""
        return self.doing in _MEET or self.doing == "backward"


_MEET = frozenset(
    """all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single barrier broadcast
    broadcast_object_list gather gather_object monitored_barrier reduce reduce_scatter reduce_scatter_tensor scatter
    scatter_object_list init_process_group destroy_process_group wait""".split()
)


def write_rank(folder: Path, state: RankState) -> None:
    """The old file or the new one is there at any moment. Not synced: a lost second does not matter."""
    body = asdict(state)
    body["prints"] = {str(k): v for k, v in state.prints.items()}
    fresh = folder / temporary_name()
    try:
        fresh.write_text(json.dumps(body, default=str))
        os.replace(fresh, folder / f"rank{state.rank}.json")
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def read_ranks(folders: Iterable[Path]) -> dict[int, RankState]:
    """Every rank that can be read; where several folders hold one, the newest."""
    found: dict[int, RankState] = {}
    for folder in folders:
        for number, path in files_by_rank(folder, "json").items():
            state = read_rank(path)
            if state is None or state.rank != number:
                continue
            known = found.get(number)
            if known is None or state.written > known.written:
                found[number] = state
    return dict(sorted(found.items()))


def read_rank(path: Path) -> RankState | None:
    """None where it is not such a file."""
    try:
        with open(path, "rb") as file:
            if not os.path.isfile(path):
                return None
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            return None
        return _state(schema.json_of(data.decode(), path.name))
    except (OSError, ValueError, Damaged, TypeError, KeyError):
        return None


def _state(body: Any) -> RankState:
    if not isinstance(body, dict):
        raise Damaged("it is not an object")
    get, text, count, seconds = body.get, schema.text, schema.count, schema.seconds
    return RankState(
        rank=count(get("rank"), "rank", 1_000_000),
        world=count(get("world", 1), "world", 1_000_000),
        host=text(get("host", ""), "host"),
        pid=count(get("pid", 0), "pid"),
        started=seconds(get("started", 0.0), "started"),
        written=seconds(get("written", 0.0), "written"),
        ended=text(get("ended", ""), "ended"),
        updates=count(get("updates", 0), "updates"),
        last_update=seconds(get("last_update", 0.0), "last_update"),
        longest=seconds(get("longest", 0.0), "longest"),
        doing=text(get("doing", ""), "doing"),
        at=schema.optional(_place, get("at"), "at"),
        busy=schema.optional(schema.real, get("busy"), "busy"),
        collectives=count(get("collectives", 0), "collectives"),
        met=[_meeting(m) for m in _list(get("met", []), "met")],
        seconds={
            text(k, "a part"): seconds(v, f"the seconds of {k}")
            for k, v in schema.object_of(get("seconds", {}), "seconds").items()
        },
        lines=[_spent(line) for line in _list(get("lines", []), "lines")],
        prints={
            int(k): text(v, "a digest")
            for k, v in schema.object_of(get("prints", {}), "prints").items()
            if k.isascii() and k.isdigit() and len(k) < 16
        },
        findings=[
            schema.finding(f, "a finding").as_dict() for f in _list(get("findings", []), "findings")
        ],
        launch=text(get("launch", ""), "launch"),
        attempt=count(get("attempt", 0), "attempt"),
        noted=count(get("noted", 0), "noted"),
    )


def _place(value: Any, what: str) -> Location:
    body = schema.object_of(value, what)
    return Location(
        schema.text(body.get("path"), "a path"),
        schema.count(body.get("line"), "a line"),
        function=schema.text(body.get("function", ""), "a function"),
    )


def _meeting(value: Any) -> Meeting:
    body = schema.object_of(value, "a collective")
    return Meeting(
        schema.count(body.get("number"), "the number of a collective"),
        schema.text(body.get("what"), "a collective"),
        schema.text(body.get("at"), "the place of a collective"),
    )


def _spent(value: Any) -> Spent:
    body = schema.object_of(value, "a line")
    return Spent(_place(body.get("at"), "a line"), schema.real(body.get("share"), "a share"))


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise Damaged(f"{what} is not a list")
    return value
