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
  fallline check . --write-baseline fallline-baseline.json   accept what is there; report only what is new

Exit status: 0 no findings (notes do not count), 1 findings, 2 wrong usage or configuration, or fallline failed.
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
        "--output-file",
        metavar="FILE",
        help="write the report to this file instead of to standard output",
    )
    add(
        "--select",
        action="append",
        default=[],
        metavar="CODES",
        help="report only these rules: codes, prefixes (FL1), names or ALL, separated by commas",
    )
    add("--ignore", action="append", default=[], metavar="CODES", help="do not report these rules")
    add(
        "--fix",
        action="store_true",
        help="apply the fixes; the fixed code is checked again, and a fix that does not help is undone",
    )
    add("--diff", action="store_true", help="print what --fix would change, and change nothing")
    add(
        "--unsafe-fixes",
        action="store_true",
        help="also apply fixes that may change what the code means",
    )
    add(
        "--show-notes",
        action="store_true",
        help="list the notes too; full and concise output otherwise only count them",
    )
    add("--explain", action="store_true", help="show the events that led to each finding, in order")
    add(
        "--statistics",
        action="store_true",
        help="print the number of findings of each rule instead of the findings",
    )
    add("--stdin-filename", metavar="PATH", help="the file name to use for standard input")
    add("--baseline", metavar="FILE", help="leave out the findings in this file")
    add("--write-baseline", metavar="FILE", help="write all findings to this file, and exit with 0")
    add(
        "--force-exclude",
        action="store_true",
        help="leave out excluded files even if they are named on the command line",
    )
    add("--exit-zero", action="store_true", help="exit with 0 even if there are findings")
    add(
        "--jobs",
        type=int,
        default=0,
        metavar="N",
        help="number of processes to use (default: one for each processor)",
    )
    add("--no-cache", action="store_true", help="read every file again, and do not write the cache")
    add(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto (default), always or never",
    )
