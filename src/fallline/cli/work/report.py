"""What `fallline report` does."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fallline.conclude import findings_of
from fallline.errors import RunError, UsageError
from fallline.report.html import write_page
from fallline.report.run import summary
from fallline.runs.findings import findings_text, write_findings
from fallline.runs.read import read_run
from fallline.runs.store import rank_files
from fallline.show.terminal import Paint, counted, wants_colour

__all__ = ["run"]

_SHOWN = 10


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


def run(args: argparse.Namespace) -> int:
    series = read_run(_one_run(args.folder))
    findings = findings_of(series)
    problems = []
    if args.output_format == "json":
        print(findings_text(findings))
    else:
        print(summary(series, findings, Paint(wants_colour(args.color, sys.stdout))), end="")
    try:
        if not (args.folder / "findings.json").exists():
            write_findings(args.folder, findings)
    except RunError as error:
        problems.append(str(error))
    try:
        written = write_page(series, findings, args.html or args.folder / "report.html")
        if args.output_format == "text":
            print(f"\n  {written}")
    except RunError as error:
        problems.append(str(error))
    for problem in problems:
        print(f"fallline report: {problem}", file=sys.stderr)
    return 2 if problems and args.html else 0
