"""Runs experiments, each in a process of its own: seeded, on one thread, several at a time, none able to stop the others."""

from __future__ import annotations

import os
import platform
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from fallline.proof import experiment
from fallline.proof.processes import begin, with_torch
from fallline.proof.record import Outcome, recorded
from fallline.proof.seeds import move_seeds, seed_everything
from fallline.rules import rule_by_code

__all__ = ["LIMIT", "measure", "outcome"]

LIMIT = 120.0  # seconds for one experiment; the slowest takes a few
_GRACE = 5.0  # seconds to clean up in, once it has answered
_TAIL = 12  # lines of a dead process's output that are reported


@dataclass(slots=True)
class _Running:
    blank: Outcome  # what is known before it answers
    process: BaseProcess
    answers: Connection
    output: Path
    until: float


def measure(
    names: Sequence[str],
    *,
    jobs: int = 1,
    limit: float = LIMIT,
    seeds_by: int = 0,
    done: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """The outcomes of these experiments, in the order of their names, with all their seeds moved by `seeds_by`.
    `done` hears of each as it comes."""
    waiting = sorted(
        names, key=lambda name: -_expected(name)
    )  # the longest first: none is left over at the end
    found: dict[str, Outcome] = {}
    running: list[_Running] = []
    with tempfile.TemporaryDirectory(prefix="fallline-prove-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(_start(waiting.pop(0), Path(folder), limit, seeds_by))
                for one, came in _finished(running):
                    one.process.join(_GRACE if came.problem == "" else 0)
                    _end(one)
                    running.remove(one)
                    found[came.of] = came
                    done(came)
        finally:
            for one in running:
                _end(one)
    return [found[name] for name in names]


def _expected(name: str) -> float:
    before = recorded(name)
    return before.seconds if before else 1.0


def _start(name: str, folder: Path, limit: float, seeds_by: int) -> _Running:
    context = with_torch()
    answers, theirs = context.Pipe(duplex=False)
    output = folder / f"{name}.txt"
    module = experiment.where()[name]
    process = context.Process(
        target=_experiment, args=(name, module, theirs, str(output), seeds_by)
    )
    process.start()
    theirs.close()  # so that its death is seen here as the end of the pipe
    return _Running(_blank(name, module), process, answers, output, time.monotonic() + limit)


def _blank(name: str, module: str) -> Outcome:
    """What is known without importing the experiment."""
    before = recorded(name)
    return Outcome(name, _name(name), module.split(".")[-2], claim=before.claim if before else "")


def _finished(running: list[_Running]) -> Iterator[tuple[_Running, Outcome]]:
    """Those that have answered, died, or had all their time; waits until there is one."""
    first = min(one.until for one in running)
    ready = connection.wait(
        [one.answers for one in running], timeout=max(0.0, first - time.monotonic())
    )
    for one in list(running):
        if one.answers in ready:
            try:
                yield one, one.answers.recv()
            except EOFError:
                yield one, _failed(one, f"its process died{_last_words(one.output)}")
        elif time.monotonic() >= one.until:
            yield one, _failed(one, "it took longer than it may")


def _failed(one: _Running, problem: str) -> Outcome:
    return replace(one.blank, problem=problem)


def _last_words(output: Path) -> str:
    with suppress(OSError):
        lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if lines:
            return ":\n" + "\n".join(lines[-_TAIL:])
    return ""


def _end(one: _Running) -> None:
    one.process.kill()
    one.process.join()
    one.answers.close()


# -- in the experiment's own process --------------------------------------------------------------------------------


def _experiment(name: str, module: str, answers: Connection, output: str, seeds_by: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who waits; it ends us
    begin()
    try:
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    except FileNotFoundError:
        return  # the command was stopped before this began, and has cleared its folder away
    os.dup2(log, 1)
    os.dup2(log, 2)
    move_seeds(seeds_by)
    answers.send(outcome(name, module))


def outcome(name: str, module: str) -> Outcome:
    """What came of one experiment, measured in this process."""
    import torch

    try:
        found = experiment.experiments_in(module)[name]
    except ModuleNotFoundError as error:
        return _without(_blank(name, module), error)
    except Exception:
        return replace(_blank(name, module), problem=traceback.format_exc())
    known = Outcome(
        found.of, _name(found.of), found.room, found.claim, found.taught, found.needs,
        machine=_machine(found.needs), torch=torch.__version__,
    )  # fmt: skip
    if found.needs == "cuda" and not torch.cuda.is_available():
        return replace(
            known, verdict="unavailable", problem="it needs a CUDA device, and there is none here"
        )
    seed_everything()
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    try:
        measured = found.measure()
    except ModuleNotFoundError as error:
        return _without(known, error)
    except Exception:
        return replace(known, problem=traceback.format_exc())
    return replace(
        known,
        verdict="proved" if measured.proved else "refuted",
        conclusion=measured.conclusion,
        sides={side: dict(values) for side, values in measured.sides.items()},
        holds={words: bool(held) for words, held in measured.holds.items()},
        curves={curve: [float(y) for y in ys] for curve, ys in measured.curves.items()},
        axes=tuple(measured.axes),
        positions=[float(x) for x in measured.positions],
        seconds=time.perf_counter() - start,
    )


def _without(known: Outcome, error: ModuleNotFoundError) -> Outcome:
    return replace(
        known,
        verdict="unavailable",
        problem=f"it needs the package {error.name}, which is not installed here",
    )


def _name(of: str) -> str:
    rule = rule_by_code(of) if of.startswith("FL") else None
    return rule.name if rule else of


def _machine(needs: str) -> str:
    import torch

    if needs == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    return f"{os.cpu_count()} x {model}"
