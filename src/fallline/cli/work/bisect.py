"""What `fallline bisect` does: steps from the good end to the bad one, halved until one is left."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fallline.diff import Comparison, compare
from fallline.errors import UsageError
from fallline.report.diff import headline
from fallline.report.json import plain
from fallline.runs.read import read_run
from fallline.runs.series import Series
from fallline.show.terminal import counted
from fallline.untrusted import json_text, printable

__all__ = ["DoesNotRun", "Found", "Step", "first_bad", "run", "steps_between"]


@dataclass(frozen=True)
class Step:
    """One way to run the script: at a commit, or with these arguments."""

    name: str
    arguments: tuple[str, ...]
    commit: str = ""


@dataclass(frozen=True)
class Found:
    """The first step that trains differently from the good end, and how."""

    place: int
    after: int  # the last step that trains the same
    how: Comparison
    broken: tuple[int, ...] = ()  # steps between the two that do not run: it may be one of them


class DoesNotRun(UsageError):
    """The script did not come to its updates at this step."""


def run(args: argparse.Namespace) -> int:
    if (args.good is None) == (args.good_options is None):
        raise UsageError("say what was good: --good COMMIT, or --good-options OPTIONS")
    if args.updates < 1:
        raise UsageError("--updates: compare at least one")
    if args.good is not None:
        steps = _commits(args.good, args.bad, tuple(args.arguments))
    else:
        steps = steps_between(shlex.split(args.good_options), list(args.arguments))
    # a name that marks it as temporary: a trial writes nothing outside of temporary folders
    with tempfile.TemporaryDirectory(prefix="tmp-fallline-bisect-") as folder:
        runs = _Runs(Path(folder), args)
        found = first_bad(steps, runs.series, _say)
    return _answer(args, steps, found)


def first_bad(
    steps: list[Step], series: Callable[[Step], Series], say: Callable[[str], None]
) -> Found | None:
    """The first step that trains differently from the first of all; None where the last trains the same."""
    good = series(steps[0])

    def judged(place: int) -> Comparison:
        found = compare(good, series(steps[place]))
        say(f"{steps[place].name}: {'the same' if found.same else 'different'}")
        return found

    low, high = 0, len(steps) - 1
    worst = judged(high)
    if worst.same:
        return None
    _must_repeat(steps[0], compare(good, series(steps[0])))
    broken: set[int] = set()
    while (middle := _next(low, high, broken)) is not None:
        try:
            found = judged(middle)
        except DoesNotRun as why:
            say(f"{why}\nskipped")
            broken.add(middle)
            continue
        if found.same:
            low = middle
        else:
            high, worst = middle, found
    return Found(high, low, worst, tuple(sorted(n for n in broken if low < n < high)))


def _next(low: int, high: int, broken: set[int]) -> int | None:
    """The step farthest from everything that is known: the middle, or as far as possible from steps that do not run."""
    known = {low, high, *broken}
    left = [n for n in range(low + 1, high) if n not in broken]
    return max(left, key=lambda n: min(abs(n - k) for k in known), default=None)


def _must_repeat(good: Step, again: Comparison) -> None:
    """A script that never trains the same way twice would make every step look bad."""
    if again.same or again.first is None:
        return
    raise UsageError(
        f"two runs of {good.name} already differ, so a change cannot be told from that: {again.first.what}. "
        "`fallline measure same` shows where the script gets different numbers from"
    )


def _answer(args: argparse.Namespace, steps: list[Step], found: Found | None) -> int:
    said = {
        "same": found is None,
        "first": None if found is None else steps[found.place].name,
        "after": None if found is None else steps[found.after].name,
        "skipped": [] if found is None else [steps[n].name for n in found.broken],
        "diff": None if found is None else plain(found.how.to_json()),
    }
    if args.output_format == "json":
        print(json_text(said, indent=2))
    elif found is None:
        print(f"{steps[0].name} and {steps[-1].name} train the same within noise in the first {counted(args.updates, 'update')}.")  # fmt: skip
    else:
        print(_changes(steps, found))
        print(f"  {headline(found.how)}")
    return 0 if found is None else 1


def _changes(steps: list[Step], found: Found) -> str:
    if not found.broken:
        return f"The training changes with {steps[found.place].name}."
    names = ", ".join(steps[n].name for n in found.broken)
    return f"The training changes with {steps[found.place].name}, or with one before it that does not run: {names}."


def _say(text: str) -> None:
    print(f"fallline: {printable(text)}", file=sys.stderr, flush=True)


# -- options -------------------------------------------------------------------------------------------------------


def steps_between(good: list[str], bad: list[str]) -> list[Step]:
    """From the good arguments to the bad ones, one option at a time."""
    ours, theirs = _by_name(good), _by_name(bad)
    names = [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]
    if not names:
        raise UsageError("the good options and the script's arguments are the same")
    steps, now = [Step("the good options", tuple(good))], dict(ours)
    for name in names:
        if name in theirs:
            now[name] = theirs[name]
        else:
            now.pop(name)
        words = tuple(word for part in now.values() for word in part)
        value = " ".join(theirs.get(name, ("without", name)))
        steps.append(Step(value, words))
    return steps


def _by_name(words: list[str]) -> dict[str, tuple[str, ...]]:
    """`--lr 0.1 --amp` → {"--lr": ("--lr", "0.1"), "--amp": ("--amp",)}. An option that is given twice is one. Hydra's `lr=0.1` goes by
    its name, other words before any option by their place."""
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for place, word in enumerate(words):
        before, sign, _ = word.partition("=")
        if word.startswith("-") and not word.lstrip("-")[:1].isdigit():
            name = before
            found[name] = (*found.get(name, ()), word)
        elif name:
            found[name] += (word,)
        else:
            found[before if sign else f"argument {place}"] = (word,)
    return found


# -- commits -------------------------------------------------------------------------------------------------------


def _commits(good: str, bad: str, arguments: tuple[str, ...]) -> list[Step]:
    begin = _git("rev-parse", "--verify", f"{good}^{{commit}}")
    end = _git("rev-parse", "--verify", f"{bad}^{{commit}}")
    if begin == end:
        raise UsageError(f"{good} and {bad} are the same commit")
    between = _git("rev-list", "--reverse", "--first-parent", f"{begin}..{end}").split()
    if not between:
        raise UsageError(f"there is no way from {good} to {bad}: the good commit must come before")
    return [Step(_titled(c), arguments, c) for c in (begin, *between)]


def _titled(commit: str) -> str:
    return _git("log", "-1", "--format=%h %s", commit)


def _git(*words: str, at: Path | None = None) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=at, capture_output=True, text=True)
    except OSError as error:
        raise UsageError(f"git cannot be run: {error.strerror or error}") from None
    if done.returncode:
        raise UsageError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


class _Runs:
    """Records the first updates of a step."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.folder, self.args = folder, args
        self._count = 0

    def series(self, step: Step) -> Series:
        self._count += 1
        out = self.folder / f"run{self._count}"
        with self._home(step) as home:
            self._record(step, out, home)
        found = read_run(out)
        if not any(track.rows for track in found.tracks):
            raise DoesNotRun(f"{step.name} ended without an update of an optimizer")
        return found

    def _record(self, step: Step, out: Path, home: Path) -> None:
        command = [sys.executable, "-m", "fallline.integrations.first_updates", "--out", str(out)]
        command += ["--updates", str(self.args.updates)]
        command += ["-m"] if self.args.module else []
        command += [self.args.target, *step.arguments]
        seeded = {**os.environ, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
        done = subprocess.run(command, cwd=home, env=seeded, capture_output=True, text=True)
        if done.returncode or not out.is_dir():
            last = printable("\n".join(done.stderr.strip().splitlines()[-5:]))
            raise DoesNotRun(f"{step.name} did not come to {counted(self.args.updates, 'update')}:\n{last}")  # fmt: skip

    @contextmanager
    def _home(self, step: Step) -> Iterator[Path]:
        """The folder to run in: our own, or the same one in a worktree of the commit."""
        if not step.commit:
            yield Path.cwd()
            return
        top = Path(_git("rev-parse", "--show-toplevel"))
        tree = self.folder / "tree"
        _git("worktree", "add", "--detach", "--force", str(tree), step.commit, at=top)
        try:
            home = tree / Path.cwd().resolve().relative_to(top.resolve())
            if not home.is_dir():
                raise DoesNotRun(f"{step.name} does not have the folder {home.relative_to(tree)}")
            for path in self.args.link:
                there = home / path
                if not there.exists():
                    there.parent.mkdir(parents=True, exist_ok=True)
                    os.symlink(path.resolve(), there)
            yield home
        finally:
            _git("worktree", "remove", "--force", str(tree), at=top)
