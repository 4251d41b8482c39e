"""`fallline report`: shows a recorded run in the terminal and as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["HELP", "add_arguments"]

HELP = """\
Show a recorded run: its findings, and how loss, gradients, learning rate, time and memory developed.

  fallline report fallline-runs/train-20261115-101500
  fallline report DIR --html page.html
  fallline report DIR --output-format json
  fallline report DIR --live               where every rank is now
  fallline report node1/run node2/run      one run whose machines kept their own ranks

Writes DIR/report.html, one page that needs no network, and DIR/findings.json if the run was killed before it could.
Works while the run is still in progress, and on a machine without torch.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="DIR",
        type=Path,
        nargs="+",
        help="the run folder that `fallline run` made; give several if each machine kept its own ranks",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="show where every rank is, every two seconds, until all have ended; writes nothing",
    )
    parser.add_argument(
        "--flights",
        metavar="PATH",
        type=Path,
        help="dumps of torch's flight recorder (TORCH_FR_BUFFER_SIZE): a folder, or the beginning of their names such as /tmp/nccl_trace_rank_ "
        "(default: those in DIR)",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        help="write the page to this file (default: DIR/report.html)",
    )
    parser.add_argument(
        "--output-format",
        choices=("text", "json"),
        default="text",
        help="text (default) or json",
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto (default), always or never",
    )
