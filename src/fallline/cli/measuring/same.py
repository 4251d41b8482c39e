"""`fallline measure same`"""

from __future__ import annotations

import argparse

from fallline.cli.measuring import _common

__all__ = ["HELP", "add_arguments"]

HELP = """\
whether a script gives the same bits twice; the first update, parameter and operation that differ, and why

  fallline measure same train.py --its --own arguments
  fallline measure same --ranks 2 train.py                    one rank against two, under torchrun
  fallline measure same --resume="--resume last.pt" train.py  uninterrupted against stopped and resumed

Runs the script twice and, if the results differ, again with every operation watched, then with one suspect fixed at a
time: seeds, the clock, PYTHONHASHSEED, deterministic kernels. Exit status 1 if the bits differ. Each run is a real one,
in the current folder: the script writes what it always writes.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _common.add_output(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--ranks", type=_common.count, metavar="N", help="compare one rank with N, under torchrun"
    )
    how.add_argument(
        "--resume",
        metavar="ARGS",
        help="compare an uninterrupted run with one that is stopped and resumed with these arguments added",
    )
    parser.add_argument(
        "--stop",
        type=_common.count,
        metavar="N",
        help="with --resume: stop after this many updates (default: half of --updates)",
    )
    parser.add_argument(
        "--no-pin",
        action="store_true",
        help="only compare two runs; do not look for the cause",
    )
    _common.add_script(parser, updates=20)
