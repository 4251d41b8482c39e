"""`fallline report`: a run again, in the terminal and as one HTML page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["HELP", "add_arguments", "run"]

HELP = """\
Show a run again: what was found, and how loss, gradients, learning rate, time and memory went.

  fallline report fallline-runs/train-20261115-101500
  fallline report DIR --html page.html
  fallline report DIR --output-format json

Writes DIR/report.html, one page that needs no network, and DIR/findings.json where the run could not write it (killed).
Works while a run still goes on, and on a machine without torch.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", type=Path, help="the run folder that `fallline run` made"
    )
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="where the page goes (default: DIR/report.html)"
    )
    parser.add_argument(
        "--output-format",
        choices=("text", "json"),
        default="text",
        help="what is printed (default: text)",
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour in the terminal",
    )


def run(args: argparse.Namespace) -> int:
    from fallline.errors import RunError
    from fallline.report.html import write_page
    from fallline.report.run import summary
    from fallline.runs.findings import findings_text, write_findings
    from fallline.runs.read import read_run
    from fallline.show.terminal import Paint, wants_colour
    from fallline.watcher.conclude import findings_of

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
