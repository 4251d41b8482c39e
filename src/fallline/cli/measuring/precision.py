"""`fallline measure precision`: float16, bfloat16 or neither."""

from __future__ import annotations

import argparse

from fallline.cli.measuring._common import add_output, add_script

__all__ = ["HELP", "add_arguments"]

HELP = """\
FP16, BF16 or neither: one update of a script in every format

  fallline measure precision train.py --its --own arguments
  fallline measure precision --updates 50 train.py    at the 50th update
  fallline measure precision --table                  the type in which autocast runs each operation, read from torch

Runs the micro-batch of one update again, forward and backward, in fp32, fp16 and bf16 (under autocast, and all in half) and
compares each with fp64. Reports the first operation that fails with its module and line, the smallest change that was tried and
works, the range of the numbers, gradient underflow with and without loss scaling, matrix products that do not fit tensor cores,
and the speed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--table",
        action="store_true",
        help="print which operations run in which type under autocast here; needs no script",
    )
    parser.add_argument(
        "--device",
        metavar="KIND",
        help="with --table: cpu or cuda (default: the one this machine has)",
    )
    parser.add_argument("--no-timing", action="store_true", help="do not measure the speed")
    add_output(parser)
    add_script(parser, updates=1, optional=True)  # --table needs none
