"""A run of many ranks, simulated: seconds and memory of `fallline report`.

    python benchmarks/ranks.py [--ranks 1000] [--updates 30000] [--write]

Each rank has its own file of updates and its own summary, as a watched rank leaves them. One rank is slow in its data
loading, one has drifted away, one died: are they named? (Ranks share 20 different files, by hard links: a disk with a thousand of them is not what
is measured.)
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import machine, write_section

from fallline.location import Location
from fallline.runs.rank import RankState, write_rank
from fallline.runs.store import Store
from fallline.runs.update import UpdateRow

FILES = 20
SLOW, DRIFTED, DEAD = 0.617, 0.333, 0.9  # which ranks, as a share of all


def make(folder: Path, ranks: int, updates: int) -> None:
    at = Location("train.py", 40)
    for number in range(min(FILES, ranks)):
        store = Store.create(folder, number)
        store.meta("world", ranks)
        store.meta("started", 1.0)
        store.meta("ended", 3000.0)
        store.meta("status", "finished")
        store.meta("script", "train.py")
        for start in range(0, updates, 1000):
            store.updates([_row(i, at) for i in range(start, start + 1000)])
        store.close()
    for number in range(FILES, ranks):
        os.link(folder / f"rank{number % FILES}.sqlite", folder / f"rank{number}.sqlite")
    for number in range(ranks):
        write_rank(folder, _state(number, ranks, updates, at))


def _row(index: int, at: Location) -> UpdateRow:
    seconds = {"data": 0.01, "forward": 0.03, "backward": 0.05, "step": 0.01}
    return UpdateRow(
        index, at=at, loss_at=at, time=1.0 + index / 10, loss=1.0 + 0.5 * (index % 7), lr=1e-3, grad_norm=1.0,
        seconds=seconds, memory=1 << 30,
        fingerprint=[1.0, 1.0] if index % 1000 == 0 else None,
    )  # fmt: skip


def _state(number: int, ranks: int, updates: int, at: Location) -> RankState:
    slow, drifted, dead = (int(share * ranks) for share in (SLOW, DRIFTED, DEAD))
    seconds = {
        "data": 0.01,
        "forward": 0.03,
        "backward": 0.05,
        "step": 0.01,
        "other": 0.0,
        "wait": 0.02,
    }
    return RankState(
        number, ranks, f"node{number // 8}", 1000 + number, started=1.0, written=2000.0 if number == dead else 3000.0,
        ended="" if number == dead else "finished", updates=updates, last_update=3000.0, longest=0.5, at=at, busy=1.0,
        seconds=seconds | ({"data": 0.08, "wait": 0.0} if number == slow else {}),
        prints={i: "aa" if number != drifted or i < 4096 else "bb" for i in (0, 64, 1024, 4096, 16384)},
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--updates", type=int, default=30_000)
    parser.add_argument(
        "--write", action="store_true", help="put the result into benchmarks/RESULTS.md"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), args.ranks, args.updates)
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "fallline", "report", name], stdout=subprocess.PIPE, text=True
        )
        said = process.stdout.read() if process.stdout is not None else ""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        took = time.monotonic() - begun
    print(said)
    text = (
        f"{args.ranks:,} simulated ranks × {args.updates:,} updates: `fallline report` takes **{took:.1f} s** "
        f"({usage.ru_utime + usage.ru_stime:.1f} s of CPU) and **{usage.ru_maxrss / 1024:.0f} MB** at its highest. "
        f"It names the slow rank {'(yes)' if 'FL321' in said else '(no)'} and the dead one {'(yes)' if 'FL324' in said else '(no)'}."
    )
    print(text)
    if args.write:
        write_section("ranks", f"`python benchmarks/ranks.py`, {machine()}.\n\n{text}")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
