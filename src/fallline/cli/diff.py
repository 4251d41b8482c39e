"""`fallline diff`: compares two recorded runs."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["HELP", "add_arguments"]

HELP = """\
Compare two recorded runs and say what differs, first cause first: environment, code, options, the order and values of the data, the
initialisation, the learning rate, the optimizer, then the first update whose numbers differ. What follows from that is not listed.

  fallline run --out runs/monday train.py
  fallline run --out runs/friday train.py
  fallline diff runs/monday runs/friday
  fallline diff runs/monday runs/friday --repeat runs/monday-2 --html diff.html

Runs that differ only because kernels sum in a different order each time are the same within noise. Without a repeat, noise is
recognised by its size at the start and by how it grows; --repeat measures it.

exit status: 0 the same within noise, 1 different, 2 a run cannot be read
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "a", metavar="RUN_A", type=Path, help="a run folder that `fallline run` made"
    )
    parser.add_argument("b", metavar="RUN_B", type=Path, help="the run folder to compare it with")
    parser.add_argument(
        "--repeat",
        metavar="RUN",
        type=Path,
        action="append",
        default=[],
        help="a repeat of RUN_A, to measure the noise (repeatable)",
    )
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="also write a page with both curves"
    )
    parser.add_argument(
        "--output-format", choices=("text", "json"), default="text", help="text (default) or json"
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto (default), always or never",
    )
