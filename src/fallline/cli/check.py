"""`fallline check PATH...`"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser


__all__ = ["HELP", "add_arguments"]

HELP = """\
Read training code and find what is wrong in it. Nothing is imported or executed.

  fallline check .                        a project, .py and .ipynb
  fallline check train.py --explain       with the events that led to each finding
  fallline check train.py --diff          what --fix would change
  fallline check . --write-baseline fallline-baseline.json   accept what is there; tell only what is new

Exit status: 0 nothing found (notes alone count as nothing), 1 findings, 2 wrong usage or configuration, or fallline failed.
"""

FORMATS = ("full", "concise", "json", "sarif", "github")


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="files or folders; `-` reads standard input")
    add(
        "--output-format",
        choices=FORMATS,
        default="full",
        help="full (default), concise, json, sarif or github",
    )
    add(
        "--output-file", metavar="FILE", help="write the report there instead of to standard output"
    )
    add(
        "--select",
        action="append",
        default=[],
        metavar="CODES",
        help="only these: codes, prefixes (FL1), names, ALL; comma-separated",
    )
    add("--ignore", action="append", default=[], metavar="CODES", help="not these")
    add(
        "--fix",
        action="store_true",
        help="make the fixes; each is read again and withdrawn if it does not hold",
    )
    add("--diff", action="store_true", help="print what --fix would change, and change nothing")
    add(
        "--unsafe-fixes", action="store_true", help="also make fixes that can change what was meant"
    )
    add(
        "--show-notes",
        action="store_true",
        help="list the notes too, which are otherwise only counted (in full and concise output)",
    )
    add("--explain", action="store_true", help="show the events that led to each finding, in order")
    add(
        "--statistics",
        action="store_true",
        help="print how often each rule was found instead of the findings",
    )
    add("--stdin-filename", metavar="PATH", help="the name of what comes from standard input")
    add("--baseline", metavar="FILE", help="leave out the findings in this file")
    add("--write-baseline", metavar="FILE", help="write all findings to this file and succeed")
    add(
        "--force-exclude",
        action="store_true",
        help="leave out excluded files even when they are named outright",
    )
    add("--exit-zero", action="store_true", help="exit with 0 even when something was found")
    add(
        "--jobs",
        type=int,
        default=0,
        metavar="N",
        help="processes to read with (default: one for each processor)",
    )
    add("--no-cache", action="store_true", help="read every file again, and remember nothing")
    add(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto (default), always or never",
    )
