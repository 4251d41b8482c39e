"""What `fallline run` does."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys

from fallline.cli.run import OPTIONS
from fallline.errors import UsageError
from fallline.finding import Finding
from fallline.integrations.logger import loggers_of
from fallline.integrations.run import run_watched, shown
from fallline.report.run import finding_lines, summary
from fallline.runs.series import Series
from fallline.show.terminal import Paint, wants_colour

__all__ = ["run", "say_misplaced", "show"]

_READ = 1 << 20  # characters of a script that are looked through for the name of an option


def run(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("torch") is None:
        print(
            f"fallline run: there is no torch in this Python ({sys.executable}), so there is nothing to watch: "
            "pip install 'fallline[torch]', or use the Python that your script trains with",
            file=sys.stderr,
        )
    if args.out and os.path.exists(args.out) and not os.path.isdir(args.out):
        raise UsageError(f"--out {args.out} is a file: name a folder, which need not exist yet")
    if args.log:
        loggers_of(args.log)  # a package that is missing is said before the script runs
    say_misplaced(args)
    return run_watched(args, show)


def say_misplaced(args: argparse.Namespace) -> None:
    """Options of ours behind the script go to the script; if it does not mention them, that was hardly meant."""
    ours = [word for word in args.arguments if word.split("=")[0] in OPTIONS]
    if not ours or args.module:
        return
    try:
        with open(args.target, encoding="utf-8", errors="replace") as file:
            source = file.read(_READ)
    except OSError:
        return
    option = ours[0].split("=")[0]
    if option.strip("-") not in source:
        print(
            f"fallline: {option} comes after {args.target}, so it goes to the script. Options of `fallline run` come before the script",
            file=sys.stderr,
        )


def show(series: Series, found: list[Finding]) -> None:
    """On stderr, when the script has ended: what was seen, and how to see it again."""
    paint = Paint(wants_colour("auto", sys.stderr))
    if series.folder is None:  # nothing could be written
        text = "\n".join(finding_lines(series, found, paint))
    else:
        text = f"{summary(series, found, paint)}\n  fallline report {shown(series.folder)}"
    print(f"\n{text}", file=sys.stderr)
