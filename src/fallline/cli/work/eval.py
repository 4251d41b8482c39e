"""What `fallline eval` does."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from fallline.cli.work.contestants import columns
from fallline.errors import UsageError
from fallline.triage.evaluate import KINDS, judge, scenarios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fallline.cli.work.contestants import Column
    from fallline.triage.evaluate import Scenario

__all__ = ["run"]

_LARGEST = 1_000_000


def run(args: argparse.Namespace) -> int:
    """0 when everything passes, 1 when something fails."""
    if args.answer is not None:
        if args.agent or args.skills:
            raise UsageError("--answer grades one file: leave out --agent and --skills")
        return _one(args)
    if args.skills and not args.agent:
        raise UsageError("--skills compares an agent with and without them: give --agent too")
    if args.timeout <= 0:
        raise UsageError("--timeout counts seconds: give a number above 0")
    chosen = _chosen(scenarios(Path(args.scenarios) if args.scenarios else None), args.only)
    graded = columns(chosen, args.agent, args.skills, args.timeout)
    _show(chosen, graded, args.output_format)
    return 0 if all(not complaints for complaints in graded[-1].complaints.values()) else 1


def _one(args: argparse.Namespace) -> int:
    try:
        raw = Path(args.answer).read_bytes()
    except OSError as error:
        raise UsageError(f"{args.answer} cannot be read: {error.strerror}") from None
    if b"\0" in raw or len(raw) > _LARGEST:
        raise UsageError(
            f"{args.answer} is not an answer: it contains NUL bytes, or is larger than a megabyte"
        )
    text = raw.decode("utf-8", errors="replace")
    if not text.strip():
        raise UsageError(f"{args.answer} is empty: there is no answer to grade")
    complaints = judge(text)
    if args.output_format == "json":
        print(json.dumps([{"text": c.text, "backs": c.backs} for c in complaints], indent=2))
    elif not complaints:
        print("Nothing known to be wrong in it.")
    else:
        print("\n".join(f"- {c}" for c in complaints))
    return 1 if complaints else 0


def _chosen(found: list[Scenario], only: list[str]) -> list[Scenario]:
    unknown = sorted(set(only) - {s.id for s in found})
    if unknown:
        raise UsageError(f"there is no scenario {', '.join(unknown)}")
    return [s for s in found if not only or s.id in only]


def _show(chosen: list[Scenario], graded: list[Column], output: str) -> None:
    if output == "json":
        rows = [
            {
                "scenario": s.id,
                **{c.name: [str(x) for x in c.complaints[s.id]] for c in graded},
            }
            for s in chosen
        ]
        print(json.dumps(rows, indent=2))
    elif output == "markdown":
        print("\n".join([*_table(chosen, graded), "", *_summary(chosen, graded, "- "), ""]))
        print("\n".join(_reasons(chosen, graded)))
    else:
        print("\n".join([*_lines(chosen, graded), "", *_summary(chosen, graded, "")]))


def _lines(chosen: list[Scenario], graded: list[Column]) -> Iterator[str]:
    width = max(len(s.id) for s in chosen)
    if len(graded) > 1:
        yield " " * width + "  " + "  ".join(c.name for c in graded)
    for s in chosen:
        cells = [("FAIL" if c.complaints[s.id] else "pass").ljust(len(c.name)) for c in graded]
        yield f"{s.id.ljust(width)}  {'  '.join(cells).rstrip()}"
        for column in graded:
            yield from (f"    {column.name}: {x}" for x in column.complaints[s.id])


def _table(chosen: list[Scenario], graded: list[Column]) -> Iterator[str]:
    yield "| scenario | source | " + " | ".join(c.name for c in graded) + " |"
    yield "|---" * (2 + len(graded)) + "|"
    for s in chosen:
        cells = ["fails" if c.complaints[s.id] else "passes" for c in graded]
        yield f"| {s.id} | {s.source or 'ours'} | {' | '.join(cells)} |"


def _summary(chosen: list[Scenario], graded: list[Column], mark: str) -> Iterator[str]:
    """One line for each: how many pass, and what is wrong with the others, the gravest first."""
    for column in graded:
        passed = sum(not x for x in column.complaints.values())
        kinds = Counter(c.kind for found in column.complaints.values() for c in found)
        wrong = ", ".join(f"{kinds[k]} {words}" for k, words in KINDS.items() if kinds[k])
        yield f"{mark}{column.name}: {passed} of {len(chosen)} scenarios pass{f' ({wrong})' if wrong else ''}."


def _reasons(chosen: list[Scenario], graded: list[Column]) -> Iterator[str]:
    for s in chosen:
        if any(column.complaints[s.id] for column in graded):
            yield f"### {s.id}\n"
            for column in graded:
                found = column.complaints[s.id]
                yield f"{column.name}:\n" if found else f"{column.name}: passes."
                yield from (f"- {x}" for x in found)
                yield ""
