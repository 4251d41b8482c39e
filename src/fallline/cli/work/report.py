"""What `fallline report` does."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from fallline.conclude import findings_of
from fallline.errors import RunError, UsageError
from fallline.report.html import write_page
from fallline.report.ranks import rank_lines
from fallline.report.run import summary
from fallline.runs.findings import findings_text, write_findings
from fallline.runs.flight import flight_lines
from fallline.runs.rank import read_ranks
from fallline.runs.read import read_run
from fallline.runs.store import rank_files
from fallline.show.terminal import Paint, counted, wants_colour

__all__ = ["run"]

_SHOWN = 10
EVERY = 2.0  # seconds


def _one_run(folder: Path) -> Path:
    """The folder, or an error that names the runs inside it."""
    if rank_files(folder):
        return folder
    try:
        inside = [f for f in folder.iterdir() if f.is_dir() and rank_files(f)]
    except OSError:
        return folder
    if not inside:
        return folder
    newest = sorted(inside, key=lambda f: f.stat().st_mtime, reverse=True)
    shown = "".join(f"\n  fallline report {run}" for run in newest[:_SHOWN])
    raise UsageError(
        f"{folder} holds {counted(len(newest), 'run')}. Choose one (the newest first):{shown}"
    )


def _follow(folders: list[Path], paint: Paint) -> int:
    """Where every rank is, again and again."""
    while True:
        states = read_ranks(folders)
        if not states:
            raise RunError(
                f"{folders[0]} does not say where its ranks are: it is of an older version"
            )
        print(
            "\n".join([f"{time.strftime('%H:%M:%S')}", *rank_lines(states, paint), ""]), flush=True
        )
        if all(state.ended for state in states.values()):
            return 0
        time.sleep(EVERY)


def run(args: argparse.Namespace) -> int:
    folder, *more = map(_one_run, args.folder)
    paint = Paint(wants_colour(args.color, sys.stdout))
    if args.live:
        return _follow([folder, *more], paint)
    series = read_run(folder, *more, flights=args.flights)
    findings = findings_of(series)
    problems = []
    if args.output_format == "json":
        print(findings_text(findings))
    else:
        print(summary(series, findings, paint), end="")
        for line in flight_lines(series.flights):
            print(f"  torch's flight recorder: {line}")
    try:
        if not (folder / "findings.json").exists():
            write_findings(folder, findings)
    except RunError as error:
        problems.append(str(error))
    try:
        written = write_page(series, findings, args.html or folder / "report.html")
        if args.output_format == "text":
            print(f"\n  {written}")
    except RunError as error:
        problems.append(str(error))
    for problem in problems:
        print(f"fallline report: {problem}", file=sys.stderr)
    return 2 if problems and args.html else 0
