"""`fallline measure ranks`"""

from __future__ import annotations

import argparse

from fallline.cli.measuring import _common

__all__ = ["HELP", "add_arguments"]

HELP = """\
the ranks of a torchrun job: versions, reachability, bandwidth, stragglers, seeds, samples, equal parameters

  fallline measure ranks                                            this machine, and how to start a job on it
  torchrun --standalone --nproc-per-node 2 -m fallline measure ranks
  torchrun --standalone --nproc-per-node 2 -m fallline measure ranks train.py --its --own arguments

Under torchrun, asks every rank and names the ones that do not answer. Given a script, runs it for some updates and says
whether ranks read the same samples, draw the same random numbers and hold the same parameters, and how much time no_sync
would save when accumulating.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _common.add_output(parser)
    parser.add_argument(
        "--answer-within",
        type=_common.seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long a rank may take to answer (default: 30)",
    )
    _common.add_script(parser, updates=20, optional=True)
