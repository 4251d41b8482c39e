"""`python launch.py WORKER STORIES WORLD FOLDER`: the ranks of a test, forked from one process that has imported torch.

Stories are separated by commas. `name@2` runs on two ranks only; new processes begin wherever their number changes.
Each rank writes into `rank-N.log`. When one fails, the others are ended, because they would wait for it. Status 1 if any failed.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from itertools import groupby
from pathlib import Path

GRACE = 5.0  # seconds for the other ranks to say what they have to say


def forked(worker, names: list[str], rank: int, world: int, folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 1
    try:
        worker.run(names, rank, world, folder)
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(
        status
    )  # without gloo's destructors, which sometimes abort a process that has done its work


def ended(children: list[int]) -> bool:
    """Whether all ranks ended well."""
    running, failed_at = set(children), None
    while running:
        for child in list(running):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                running.discard(child)
                if status and failed_at is None:
                    failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > GRACE:
            for child in running:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return failed_at is None


def main() -> int:
    name, stories, world, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    worker = importlib.import_module(name)
    asked = [
        (name, int(ranks or world))
        for name, _, ranks in (s.partition("@") for s in stories.split(","))
    ]
    worker.prepare([name for name, _ in asked])
    for ranks, group in groupby(asked, key=lambda story: story[1]):
        names = [name for name, _ in group]
        if not ended([forked(worker, names, rank, ranks, folder) for rank in range(ranks)]):
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
