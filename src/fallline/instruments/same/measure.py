"""Runs a script in processes of its own, compares what they recorded, and finds out by experiment why they differ.

Both runs are recorded update by update, and for a few seconds operation by operation. Where they differ later than that, both are run
again with every operation up to there. A cause is confirmed by pinning its source in both runs (a seed, the clock, PYTHONHASHSEED, deterministic kernels): the difference must be gone.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fallline.errors import UsageError
from fallline.instruments.frame import Progress
from fallline.instruments.same.compare import Operation, compare_updates, first_operation, load
from fallline.instruments.same.report import Cause, Same
from fallline.instruments.same.sources import MEANS, environment
from fallline.instruments.script import Script

__all__ = ["measure_same"]

Row = dict[str, Any]
WATCHED = 10.0  # seconds that a first run may spend on watching operations
MOST_TRIALS = 4  # sources that are pinned, two runs each
_LAST_RESORT = ("hash", "clock", "numpy", "python", "entropy", "kernels")


def measure_same(
    script: Script | str,
    *,
    updates: int = 20,
    ranks: int | None = None,
    resume: Sequence[str] | None = None,
    stop: int | None = None,
    pin: bool = True,
    progress: Progress | None = None,
) -> Same:
    """Run the script twice and compare the bits.

    `ranks`: on one rank and on so many, under torchrun. `resume`: straight, and stopped after `stop` updates and run again with these arguments
    added, which must make it continue from its checkpoint. `pin=False` leaves out the experiments about the cause.
    """
    if isinstance(script, str):
        script = Script(script)
    if ranks is not None and resume is not None:
        raise UsageError("compare ranks or a resumed run, one at a time")
    with tempfile.TemporaryDirectory(prefix="fallline-same-") as folder:
        runs = _Runs(script, Path(folder), updates, progress)
        try:
            if ranks is not None:
                return _ranks(runs, ranks)
            if resume is not None:
                return _resumed(runs, tuple(resume), stop)
            return _twice(runs, pin)
        finally:
            runs.end()


@dataclass
class _Run:
    rows: list[Row]
    status: int

    @property
    def updates(self) -> int:
        return sum("parameters" in row for row in self.rows)

    @property
    def partial(self) -> bool:
        end = self.rows[-1] if self.rows else {}
        return bool(end.get("partial", True))


class _Runs:
    """Starts them one after another. The output of the first is shown, of the others when they fail."""

    def __init__(
        self, script: Script, folder: Path, updates: int, progress: Progress | None
    ) -> None:
        self.script, self.folder, self.updates = script, folder, updates
        self.count = 0
        self.interrupted = False
        self._progress = progress
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self,
        *,
        updates: int | None = None,
        until: int = -1,
        seconds: float = math.inf,
        pin: str = "",
        state: bool = False,
        ranks: int | None = None,
        more: tuple[str, ...] = (),
    ) -> _Run:
        """One run, and what it recorded; rank 0's, where there are several."""
        self.count += 1
        record = self.folder / f"run{self.count}"
        program = ["-m", "fallline.instruments.same.child"]
        if ranks is not None:
            launcher = [
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(ranks),
            ]
            program = [*launcher, *program]
        command = [sys.executable, *program, "--record", str(record)]
        command += ["--updates", str(updates or self.updates), "--until", str(until), "--pin", pin]
        command += ["--seconds", str(seconds)]
        command += ["--state"] if state else []
        command += ["-m"] if self.script.module else []
        command += [self.script.path, *self.script.arguments, *more]
        output = self.folder / f"output{self.count}"
        status = self._wait(command, {**os.environ, **environment(pin)}, output)
        return _Run(load(Path(f"{record}.rank0")), status)

    def said(self) -> list[str]:
        """What torch said in the last run about kernels that are not deterministic."""
        path = self.folder / f"run{self.count}.rank0.said"
        return list(json.loads(path.read_text())) if path.exists() else []

    def _wait(self, command: list[str], environ: dict[str, str], output: Path) -> int:
        with output.open("wb") as file:
            quiet = None if self.count == 1 else file
            self._process = subprocess.Popen(command, env=environ, stdout=quiet, stderr=quiet)
            while True:
                try:
                    status = self._process.wait(timeout=0.2)
                    break
                except subprocess.TimeoutExpired:
                    if self._progress is not None:
                        self._progress.advance(self.count, "runs")
                except KeyboardInterrupt:
                    self.interrupted = True
                    self.end()
                    status = 130
                    break
        self._process = None
        if status not in (0, 130) and self.count > 1:
            sys.stderr.write(output.read_text(errors="replace"))
        return status

    def end(self) -> None:
        """Nobody outlives us; who can still write down what it has gets the time to."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answer(compared: str, runs: _Runs, a: _Run, b: _Run) -> Same:
    """What the records say, before the reason is looked for."""
    found = compare_updates(a.rows, b.rows)
    updates = min(a.updates, b.updates)
    failed = next((r.status for r in (a, b) if r.status), 0)
    answer = Same(compared, found is None and updates > 0, updates, found, runs=runs.count)
    answer.partial = runs.interrupted or a.partial or b.partial
    answer.status = 130 if runs.interrupted else failed
    if failed and not runs.interrupted:
        answer.notes.append(
            f"the script failed with exit status {failed} after {_updates(max(a.updates, b.updates))}: repair that first"
        )
    elif not updates and not runs.interrupted:
        answer.status = 2  # 1 says that the bits differ
        who = "one of the runs" if a.updates or b.updates else "the script"
        answer.notes.append(
            f"{who} made no update (no optimizer's step() was seen): there is nothing to compare"
        )
    elif a.updates != b.updates and not answer.partial and compared != "resume":
        answer.same = False
        answer.notes.append(f"the runs made {a.updates} and {b.updates} updates")
    return answer


def _updates(number: int) -> str:
    return f"{number} update{'' if number == 1 else 's'}"


def _twice(runs: _Runs, pin: bool) -> Same:
    until = runs.updates if pin else -1
    a = runs.run(until=until, seconds=WATCHED)
    if a.status or runs.interrupted:
        return _answer("twice", runs, a, a if runs.interrupted else _Run([], a.status))
    b = runs.run(until=until, seconds=WATCHED)
    answer = _answer("twice", runs, a, b)
    if answer.difference is None or runs.interrupted or not pin:
        return answer
    if not (_watched(a, answer.difference.update) and _watched(b, answer.difference.update)):
        a, b = _again(runs, answer, answer.difference.update)
    answer.operation = first_operation(a.rows, b.rows)
    if not runs.interrupted:
        _explain(runs, answer, answer.difference.update)
    answer.runs = runs.count
    answer.partial = answer.partial or runs.interrupted
    answer.status = 130 if runs.interrupted else answer.status
    return answer


def _watched(run: _Run, update: int) -> bool:
    """Whether every operation up to the end of this update is in the record."""
    rows = [row for row in run.rows if "parameters" in row][: update + 1]
    return all("operations" in row and not row["full"] for row in rows)


def _again(runs: _Runs, answer: Same, until: int) -> tuple[_Run, _Run]:
    """The same up to this update, with all operations."""
    a, b = runs.run(updates=until + 1, until=until), runs.run(updates=until + 1, until=until)
    found = compare_updates(a.rows, b.rows)
    if found is None:
        answer.notes.append(
            "in another pair of runs, with every operation watched, the difference did not come back: it does not happen every time"
        )
    else:
        answer.difference = found
    return a, b


def _explain(runs: _Runs, answer: Same, until: int) -> None:
    """Pin one suspect after another until the difference is gone."""
    operation = answer.operation
    if operation is not None and operation.kind == "unwritten":
        answer.cause = Cause(
            "uninitialised",
            "memory that was read before it was written",
            "torch.zeros instead of torch.empty",
            True,
            operation.path,
            operation.line,
        )
        return
    for source in _suspects(operation):
        a = runs.run(updates=until + 1, pin=source)
        b = runs.run(updates=until + 1, pin=source)
        if runs.interrupted:
            return
        gone = compare_updates(a.rows, b.rows) is None and min(a.updates, b.updates) > until
        answer.tried[source] = gone
        if gone:
            answer.cause = _cause(source, operation, runs.said() if source == "kernels" else [])
            return
    if operation is not None and operation.kind == "kernel":
        answer.cause = _cause("kernels", operation, [])
        answer.cause.confirmed = False
        answer.cause.remedy = "torch has no deterministic kernel that helps here: look at what this operation does itself (a custom operation, threads)"


def _suspects(operation: Operation | None) -> list[str]:
    """Sources that may be behind it, the likeliest first."""
    if operation is None:
        return list(_LAST_RESORT[:MOST_TRIALS])
    first = {"kernel": ["kernels"], "random": ["torch"], "order": ["hash"]}.get(operation.kind, [])
    drawn = [draw.source for draw in operation.draws]
    if (
        operation.kind == "data"
    ):  # made by code that may run in a loader's worker, where draws are not seen
        first = [source for source in drawn if source in ("numpy", "python")] + ["numpy", "python"]
    wanted = [*first, *drawn]
    if operation.kind != "kernel" or drawn:
        wanted += _LAST_RESORT
    return list(dict.fromkeys(wanted))[:MOST_TRIALS]


def _cause(source: str, operation: Operation | None, said: list[str]) -> Cause:
    text, remedy = MEANS[source]
    draw = next((d for d in operation.draws if d.source == source), None) if operation else None
    path, line = (draw.path, draw.line) if draw is not None else ("", 0)
    if not path and operation is not None and source in ("kernels", "hash", "torch"):
        path, line = operation.path, operation.line  # what draws is the operation itself
    return Cause(source, text, remedy, True, path, line, said)


def _ranks(runs: _Runs, ranks: int) -> Same:
    if ranks < 2:
        raise UsageError("--ranks compares one rank with several: give 2 or more")
    a = runs.run(ranks=1, until=runs.updates, seconds=WATCHED)
    if a.status or runs.interrupted:
        return _answer("ranks", runs, a, _Run([], a.status))
    b = runs.run(ranks=ranks, until=runs.updates, seconds=WATCHED)
    answer = _answer("ranks", runs, a, b)
    found = answer.difference
    if found is None or runs.interrupted:
        return answer
    text = {
        "before": "parameters that begin differently: the ranks have different seeds, and DDP broadcasts those of rank 0",
        "batches": f"the data: rank 0 of {ranks} reads other samples, as it should; whether all ranks together read the same, `fallline measure ranks` says",
        "losses": "the loss of rank 0 alone, which is of its own samples",
        "gradients": f"the gradient: the mean over {ranks} ranks is summed in a different order, or the ranks hold unequal numbers of samples",
    }.get(found.stage, "what the ranks do differently")
    answer.operation = first_operation(a.rows, b.rows, from_forward=True)
    answer.cause = Cause("world", text, "", False)
    return answer


def _resumed(runs: _Runs, resume: tuple[str, ...], stop: int | None) -> Same:
    stop = runs.updates // 2 if stop is None else stop
    if not 0 < stop < runs.updates:
        raise UsageError(
            f"a stop after {stop} of {runs.updates} updates: it must lie between the first and the last"
        )
    a = runs.run(state=True, until=runs.updates, seconds=WATCHED)
    if a.status or runs.interrupted:
        return _answer("resume", runs, a, _Run([], a.status))
    stopped = runs.run(updates=stop)
    if stopped.status or runs.interrupted:
        return _answer("resume", runs, a, _Run([], stopped.status))
    left = runs.updates - 1
    b = runs.run(updates=left, state=True, until=left, seconds=WATCHED, more=resume)
    begins = next((row.get("before") for row in b.rows if "parameters" in row), None)
    places = [i for i, row in enumerate(a.rows) if row.get("before") == begins]
    if begins is None or not places:
        answer = _answer("resume", runs, a, _Run([], b.status))
        answer.same = False
        if begins is not None:
            answer.status = b.status  # it can be compared: nothing is as it was
            answer.notes = [
                "the resumed run begins with parameters that the straight one never had: the model was not restored, or from a different run"
            ]
            answer.cause = _lost(["the model"])
        return answer
    # parameters that do not move are met more than once: the stop is the place to look first
    at = min(places, key=lambda i: abs(i - stop))
    answer = _answer("resume", runs, _Run(a.rows[at:], a.status), b)
    answer.resumed_at = at - 1
    if at == 0:
        answer.notes.append(
            f"the resumed run begins at the beginning: no checkpoint was loaded, or none was written in the first {stop} updates"
        )
    if answer.difference is not None:
        first, other = a.rows[at], next(row for row in b.rows if "parameters" in row)
        answer.operation = first_operation(a.rows[at:], b.rows, from_forward=True)
        answer.cause = _lost(_not_restored(first, other, _drawn_from(a.rows)))
    answer.same = answer.difference is None and answer.updates > 0
    return answer


def _drawn_from(rows: list[Row]) -> set[str]:
    """Generators that move during the run; one that nobody draws from need not be restored."""
    states = [row["random"] for row in rows if "random" in row]
    return (
        {name for name in states[0] if any(s.get(name) != states[0][name] for s in states)}
        if states
        else set()
    )


def _not_restored(straight: Row, resumed: Row, drawn_from: set[str]) -> list[str]:
    """What is not as it was at the same update of the straight run, in the first update after resuming."""
    names = {
        "state": "the optimizer's state",
        "rates": "the learning rate (the scheduler)",
        "batches": "the position in the data",
    }
    lost = [text for key, text in names.items() if straight.get(key) != resumed.get(key)]
    ours, theirs = straight.get("random", {}), resumed.get("random", {})
    moved = [name for name in ours if name in drawn_from and ours[name] != theirs.get(name)]
    lost += [f"the state of {name}'s generator" for name in moved]
    return lost


def _lost(what: list[str]) -> Cause:
    if not what:
        return Cause("", "something that is not part of the recorded state", "", False)
    return Cause(
        "not restored",
        f"what was not restored: {', '.join(what)}",
        "fallline.save_checkpoint and load_checkpoint keep all of it; fallline.verify_resume proves it",
        True,
    )
