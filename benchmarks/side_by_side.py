"""The cases of a benchmark, each in a process of its own, several at once, and kept: a run that was stopped continues where it was.

A benchmark calls `answers` with the names of its cases, and is started again for each of them as `script --one NAME`; there it calls `give` with
what came out. Each answer is appended to the file of kept ones with the machine and the commit. A case that ended without an answer is not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from results import commit, machine

_MARK = "ANSWER "


def options(doc: str | None) -> argparse.ArgumentParser:
    """What every benchmark of this kind takes."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains it")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at once (1)")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="answers are kept here, and a case that is kept is not run again")  # fmt: skip
    parser.add_argument("--known", action="store_true", help="run nothing: only what is kept")
    parser.add_argument("--limit", type=float, default=900, metavar="S", help="seconds for a case (900)")  # fmt: skip
    parser.add_argument("--write", action="store_true", help="the section of RESULTS.md")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    return parser


def give(answer: dict[str, Any]) -> None:
    """The answer of the case that `--one` names, for the process that started this one."""
    print("\n" + _MARK + json.dumps(answer), flush=True)


def answers(script: str, names: Iterable[str], given: argparse.Namespace) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Each case's answer as soon as it is known, with `name`, `machine`, `commit`; `failed` says why one ended without."""
    wanted = [name for name in names if given.only in name]
    held = kept(given.kept)
    yield from (held[name] for name in wanted if name in held)
    left = [] if given.known else [name for name in wanted if name not in held]
    where = {"machine": machine(), "commit": commit()}
    with ThreadPoolExecutor(given.jobs) as pool:
        for done in as_completed([pool.submit(_one, script, name, given) for name in left]):
            answer = {**where, **done.result()}
            if given.kept is not None and "failed" not in answer:
                with given.kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(answer) + "\n")
            yield answer


def kept(path: Path | None) -> dict[str, dict[str, Any]]:
    if path is None or not path.exists():
        return {}
    read = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {answer["name"]: answer for answer in read}


def made(found: Iterable[dict[str, Any]]) -> str:
    """Where and at which commit the answers were made."""
    return "; ".join(sorted({f"{a['machine']}, at {a['commit']}" for a in found}))


def _one(script: str, name: str, given: argparse.Namespace) -> dict[str, Any]:
    variables = {"OMP_NUM_THREADS": "1"} if given.jobs > 1 else {}
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, script, "--one", name], env={**variables, **os.environ}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        said, errors = process.communicate(timeout=given.limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the runs that it has started
        process.communicate()
        return {"name": name, "failed": f"not done after {given.limit:.0f} s"}
    found = next((line for line in said.splitlines()[::-1] if line.startswith(_MARK)), None)
    if found is None:
        return {"name": name, "failed": f"status {process.returncode}: {errors[-1500:]}"}
    answer = json.loads(found.removeprefix(_MARK))
    return {"name": name, "seconds": round(time.monotonic() - begun, 1), **answer}
