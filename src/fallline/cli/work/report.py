"""What `fallline report` does."""

from __future__ import annotations

import argparse
import sys

from fallline.conclude import findings_of
from fallline.errors import RunError
from fallline.report.html import write_page
from fallline.report.run import summary
from fallline.runs.findings import findings_text, write_findings
from fallline.runs.read import read_run
from fallline.show.terminal import Paint, wants_colour

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    series = read_run(args.folder)
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
