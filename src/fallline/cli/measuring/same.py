"""`fallline measure same`"""

from __future__ import annotations

import argparse

from fallline.cli.measuring import _common

__all__ = ["HELP", "add_arguments"]

HELP = """\
whether a script gives the same bits twice; the first update, parameter and operation that differ, and why

  fallline measure same train.py --its --own arguments
  fallline measure same --ranks 2 train.py                    one rank against two, under torchrun
  fallline measure same --resume="--resume last.pt" train.py  straight against stopped and resumed

Runs the script two times and, where they differ, again with every operation watched, then with one suspect at a time
held still: seeds, the clock, PYTHONHASHSEED, deterministic kernels. Ends with 1 where the bits differ. The script is really run each time,
in the current folder, with all that it writes.
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
        help="compare a straight run with one that is stopped and run again with these arguments added",
    )
    parser.add_argument(
        "--stop",
        type=_common.count,
        metavar="N",
        help="--resume: stop after so many updates (default: half of --updates)",
    )
    parser.add_argument(
        "--no-pin",
        action="store_true",
        help="do not look for the cause: two runs, whatever they show",
    )
    _common.add_script(parser, updates=20)
