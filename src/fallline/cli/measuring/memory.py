"""`fallline measure memory`"""

from __future__ import annotations

import argparse

from fallline.cli.measuring import _common

__all__ = ["HELP", "add_arguments"]

HELP = """\
where the memory goes: the peak and who holds it, what grows, what each remedy saves

  fallline measure memory train.py --its --own arguments
  fallline measure memory --with bf16 train.py

Runs the script for some updates and accounts for every tensor: parameters, gradients, optimizer state, activations by
module, temporaries, and on CUDA what the allocator reserves beside. Names the line whose tensors outlive their update.
Remedies are computed, and those that promise something are tried: the script is run again for three updates each, in
a process of its own, while --try-for lasts. An out-of-memory error is explained and ends the script as ever.
With --out on CUDA, snapshot.pickle is what torch's memory viewer reads.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _common.add_output(parser)
    parser.add_argument(
        "--with",
        dest="remedy",
        default="",
        metavar="REMEDY",
        help="measure with this in place: micro-batch, checkpoint=PATH, bf16, set_to_none, no-foreach or fused",
    )
    parser.add_argument(
        "--try-for",
        type=_common.seconds,
        default=60.0,
        metavar="SECONDS",
        help="time for trying remedies; 0 tries none (default: 60)",
    )
    _common.add_script(parser, updates=8)
