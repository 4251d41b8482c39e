"""Dumps of torch's flight recorder (`TORCH_FR_BUFFER_SIZE`): the collectives of each rank, those that C++ sends included.

torch writes them when a collective times out, one file for each rank whose name ends with its number; as a pickle, or as JSON. A
pickle can run any code when it is loaded: only plain values are let through here.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from fallline.runs import schema
from fallline.runs.schema import Damaged
from fallline.untrusted import printable, read_file

__all__ = ["Flight", "Recorded", "flight_lines", "parting", "read_flights"]

LARGEST = 256 << 20
MOST = 100_000  # entries of a rank
# /tmp/nccl_trace_rank_3, trace_3.json, flight_recorder3.pickle
_NAMED = re.compile(r"[\w.\-]*?(\d{1,6})(?:\.(?:json|pickle|pkl|bin))?")
_OURS = re.compile(r"rank\d+\.(json|sqlite.*)|report\.html|findings\.json")


@dataclass(frozen=True, slots=True)
class Recorded:
    """One collective of a rank."""

    group: str
    number: int  # of the collectives of its group
    what: str  # all_reduce
    sizes: str
    done: bool
    at: str  # the innermost line that is not torch's


@dataclass(slots=True)
class Flight:
    """What the recorder of one rank holds, oldest first."""

    rank: int
    recorded: list[Recorded] = field(default_factory=list)

    @property
    def last(self) -> Recorded | None:
        """The one that it waits in; the last one where it waits in none."""
        waits = [r for r in self.recorded if not r.done]
        return waits[0] if waits else self.recorded[-1] if self.recorded else None


class _Plain(pickle.Unpickler):
    """Dictionaries, lists, tuples, texts and numbers: a dump has nothing else."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise Damaged(f"it asks for {module}.{name}, which a flight recorder does not write")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise Damaged("it refers to something outside of itself")


def read_flights(places: Iterable[Path]) -> dict[int, Flight]:
    """Of every rank whose dump is one of these files, or in one of these folders; what is not a dump is left out."""
    found: dict[int, Flight] = {}
    for path in (p for place in places for p in _files(place)):
        named = _NAMED.fullmatch(path.name)
        if named is None or _OURS.fullmatch(path.name):
            continue
        try:
            recorded = _entries(_loaded(path))
        except (OSError, ValueError, TypeError, KeyError, EOFError, RecursionError, MemoryError):
            continue
        except (Damaged, pickle.UnpicklingError, IndexError, AttributeError):
            continue
        if recorded:
            rank = int(named[1])
            found[rank] = Flight(rank, recorded)
    return dict(sorted(found.items()))


def _files(place: Path) -> list[Path]:
    if place.is_dir():
        return [place / name for name in sorted(os.listdir(place))[:10_000]]
    # /tmp/nccl_trace_rank_: the beginning of their names, as torch itself is given it
    if not place.exists() and place.parent.is_dir():
        return sorted(p for p in place.parent.iterdir() if p.name.startswith(place.name))[:10_000]
    return [place]


def _loaded(path: Path) -> Any:
    with open(path, "rb") as file:
        start = file.read(2)
    if start[:1] == b"{":
        return schema.json_of(read_file(path, LARGEST).decode(), path.name)
    if start[:1] != b"\x80":
        raise Damaged("it is neither JSON nor a pickle")
    return _Plain(io.BytesIO(read_file(path, LARGEST))).load()


def _entries(dump: Any) -> list[Recorded]:
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        raise Damaged("it has no entries")
    return [_recorded(e) for e in dump["entries"][-MOST:] if not e.get("is_p2p")]


def _recorded(entry: Any) -> Recorded:
    group = entry.get("process_group") or ("", "")
    name = str(entry["profiling_name"]).rpartition(":")[2]
    done = entry.get("state") == "completed" or entry.get("retired") is True
    return Recorded(
        _text(group[1] if len(group) > 1 else group[0]),
        int(entry["collective_seq_id"]),
        _text(name),
        _text(entry.get("input_sizes", "")),
        done,
        _place(entry.get("frames")),
    )


def _place(frames: Any) -> str:
    """`train.py:40`: the innermost frame that is neither torch's nor of an installed package."""
    for frame in frames if isinstance(frames, list) else ():
        path = str(frame.get("filename", ""))
        if path and "-packages" not in path and f"{os.sep}torch{os.sep}" not in path:
            shown = os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path
            return f"{_text(shown)}:{int(frame.get('line', 0))}"
    return ""


def _text(value: Any) -> str:
    return printable(str(value), keep="")[:200]


def parting(
    flights: Mapping[int, Flight],
) -> tuple[int, dict[str, list[tuple[int, str]]]] | None:
    """The first collective of a group that is not the same on all its ranks: its number from 0, and what it is, on whom, and where."""
    for group in dict.fromkeys(r.group for f in flights.values() for r in f.recorded):
        by_rank = {
            rank: {r.number: r for r in flight.recorded if r.group == group}
            for rank, flight in flights.items()
        }
        by_rank = {rank: known for rank, known in by_rank.items() if known}
        if len(by_rank) < 2:
            continue
        for number in sorted(set.intersection(*(set(known) for known in by_rank.values()))):
            calls: dict[str, list[tuple[int, str]]] = {}
            for rank, known in by_rank.items():
                calls.setdefault(known[number].what, []).append((rank, known[number].at))
            if len(calls) > 1:
                return number - 1, calls
    return None


def flight_lines(flights: Mapping[int, Flight]) -> list[str]:
    """One sentence for the ranks that stopped in the same collective."""
    groups: dict[tuple[str, int, str, bool, str], list[int]] = {}
    for rank, flight in flights.items():
        last = flight.last
        if last is not None:
            key = (last.group, last.number, last.what, last.done, last.at)
            groups.setdefault(key, []).append(rank)
    said = []
    for (group, number, what, done, at), ranks in sorted(groups.items(), key=lambda g: g[0][1]):
        who = f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {', '.join(map(str, ranks[:8]))}"
        who += ", ..." if len(ranks) > 8 else ""
        verb = ("has" if len(ranks) == 1 else "have") if done else ("is" if len(ranks) == 1 else "are")  # fmt: skip
        how = f"{verb} finished" if done else f"{verb} waiting in"
        of = f" of {group}" if group and group != "default_pg" else ""
        said.append(f"{who} {how} collective {number}{of}, {what}{f' at {at}' if at else ''}.")
    return said
