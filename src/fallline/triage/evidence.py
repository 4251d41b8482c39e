"""What came along with a question: code goes to the reader, a run folder gives its findings. Nothing is executed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fallline.errors import RunError, UsageError
from fallline.finding import Finding
from fallline.syntax.names import HABITS
from fallline.triage.gathered import Gathered
from fallline.triage.pasted import cut_off, end_of_update, in_a_loop, one_step_of_two
from fallline.triage.post import Post

if TYPE_CHECKING:
    from fallline.runs.series import Series

__all__ = ["PASTED", "code_in", "corrected", "gather", "lines_back", "seen_in"]

_LARGEST = 2_000_000
PASTED = "<question>"


def gather(question: str, code: Sequence[str] = (), run: str | None = None) -> Gathered:
    """The findings of all evidence, and the corrected code where the reader has certain fixes."""
    found = Gathered([])
    for path, text in [(path, _read(path)) for path in code] or code_in(question):
        found.add(_excerpt(text) if path == PASTED else corrected(text, path))
    if run is not None:
        _of_run(Path(run), found)
    return found


def _excerpt(text: str) -> Gathered:
    """What is found in pasted code: a fragment is read as the inside of a loop, and one that stops before its step with the usual end."""
    end = end_of_update(text)
    whole = textwrap.dedent(text) + end if end else text
    read = corrected(whole, PASTED)
    if not read.serious and (head := in_a_loop(whole)):
        read = _inside(head, whole, PASTED) or read
    if end:  # the end is ours: what is found in it is not theirs, and a correction would show it
        last = text.count("\n") + 1
        read = Gathered([f for f in read.findings if f.at.line <= last], read={PASTED: text})
    if one_step_of_two(text):  # the graph may be kept for the step that was not pasted
        read.findings = [f for f in read.findings if f.code != "FL403"]
        read.diff, read.corrected = "", None
    read.cut = cut_off(text)
    return read


def code_in(question: str) -> list[tuple[str, str]]:
    """Python in a question, as if it were a file: what is fenced, or else lines that can be nothing but code."""
    fenced = "```" in question
    blocks = [b for b in Post.of(question).blocks if not fenced or "\n" in b.strip() or "(" in b]
    if not fenced:
        blocks = [textwrap.dedent(b) for b in blocks]
    return [(PASTED, "\n".join(blocks))] if any(blocks) else []


def corrected(text: str, path: str) -> Gathered:
    """The findings in a piece of code, and the code with the fixes that hold: each was read again."""
    # a question without code need not wait for the reader
    from fallline.check.fixing import Fixer
    from fallline.verdict.project import read_paths

    head = _assumed(text) if path == PASTED else ""
    given = {path: (head + text).encode()}
    readings = read_paths([path], roots=[str(Path(path).parent)], given=given)
    found = [f for r in readings for f in r.findings]
    if path == PASTED or any(f.code != "FL000" and f.severity != "info" for f in found):
        found = [f for f in found if f.code != "FL000"]  # an indentation that was lost on the way
    fixer = Fixer(readings, lambda finding, sources: finding.severity != "info", ".", given, True)
    fixer.run()
    lines = head.count("\n")
    gathered = Gathered([_moved(f, lines) for f in found], read={path: text})
    if (changed := fixer.state.changed.get(path)) is not None:
        gathered.corrected = changed.decode().removeprefix(head)
        gathered.diff = _changes(text, gathered.corrected)
        left = [f for f in fixer.state.readings[path].findings if f.severity != "info"]
        gathered.remaining = [_moved(f, lines) for f in left]
    return gathered


def _inside(head: str, text: str, path: str) -> Gathered | None:
    """What is found in a fragment that is read as the body of a loop, at its own lines; None where that is nothing."""
    looped = corrected(f"{head}\n{textwrap.indent(textwrap.dedent(text), '    ')}", path)
    if not looped.serious:
        return None
    found = Gathered([_moved(f, 1) for f in looped.findings], read={path: text})
    if looped.corrected is not None:
        found.corrected = textwrap.dedent(looped.corrected.partition("\n")[2])
        found.diff = _changes(textwrap.dedent(text), found.corrected)
        found.remaining = [_moved(f, 1) for f in looped.remaining]
    return found


def _changes(before: str, after: str) -> str:
    """The lines that changed, each with a sign, and one line around them."""
    from difflib import unified_diff  # a question without code need not wait for it

    rows = list(unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1))[2:]
    return textwrap.dedent("\n".join("" if row.startswith("@@") else row for row in rows)).strip(
        "\n"
    )


def _assumed(text: str) -> str:
    """The imports that a pasted fragment leaves out because everybody knows them."""
    return "".join(
        f"{_import(name, dotted)}\n"
        for name, dotted in HABITS.items()
        if re.search(rf"\b{name}\b", text)
        and not re.search(
            rf"import\b[^\n]*\b{name}\b|^{name} *=|(?:def|class) {name}\b", text, re.M
        )
    )


def _import(name: str, dotted: str) -> str:
    home, _, last = dotted.rpartition(".")
    known_as = "" if name == last else f" as {name}"
    return f"from {home} import {last}{known_as}" if home else f"import {last}{known_as}"


def _moved(finding: Finding, lines: int) -> Finding:
    """The finding where it is in the fragment, its message too. Its fix is in the corrected code."""
    if not lines:
        return finding
    at = replace(finding.at, line=max(1, finding.at.line - lines))
    message = lines_back(finding.message, lines)
    return replace(finding, at=at, message=message, fix=None, related={})


def lines_back(message: str, lines: int) -> str:
    """A message about a text that was read with `lines` more lines before it."""
    return re.sub(r"\bline (\d+)", lambda m: f"line {int(m[1]) - lines}", message)


def _read(path: str) -> str:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); --code takes a Python file"
        ) from None
    if len(data) > _LARGEST:
        raise UsageError(
            f"{path} is larger than two megabytes; give the file with the training loop"
        )
    return data.decode("utf-8", errors="replace")


def _of_run(folder: Path, gathered: Gathered) -> None:
    """What was found and measured in a watched run. One in which nothing was watched is refused: it must not look like a healthy one."""
    # nor for what reads runs
    from fallline.conclude import findings_of
    from fallline.runs.findings import read_findings
    from fallline.runs.read import read_run

    found = read_findings(folder)
    if folder.is_file():
        raise RunError(f"{folder} is a file; --run takes the folder of a watched run")
    try:
        series = read_run(folder)
    except RunError:
        if not found:
            raise
        gathered.findings += found  # they were written when it could be read
        return
    gathered.add(seen_in(series, found or findings_of(series), str(folder)))


def seen_in(series: Series, found: list[Finding], folder: str) -> Gathered:
    """These findings and the run's numbers, unless there are none because the run has no update."""
    from fallline.runs.overview import longest, measured

    main = longest(series)
    if found or any(track.rows for track in series.tracks):
        return Gathered(found, numbers=measured(series, main) if main is not None else {})
    raise RunError(
        f"the run in {folder} has no update: no optimizer stepped while it was watched, so it says nothing about the question. "
        "Watch a run that trains: `fallline run train.py`"
    )
