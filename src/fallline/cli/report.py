"""`fallline report`: a run again, in the terminal and as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["HELP", "add_arguments"]

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
