"""`fallline measure memory`"""

from __future__ import annotations

import argparse

from fallline.cli.measuring import _common

__all__ = ["HELP", "add_arguments"]

HELP = """\
where the memory goes: what holds the peak, what grows, and what each remedy saves

  fallline measure memory train.py --its --own arguments
  fallline measure memory --with bf16 train.py

Runs the script for some updates and accounts for every tensor: parameters, gradients, optimizer state, activations by
module, temporaries, and on CUDA the memory that the allocator reserves on top. Names the line whose tensors outlive
their update. Estimates what each remedy saves, and tries the promising ones: the script runs again for three updates
each, in its own process, until --try-for is used up. An out-of-memory error is explained, and still ends the script.
With --out on CUDA, also writes snapshot.pickle for torch's memory viewer.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _common.add_output(parser)
    parser.add_argument(
        "--with",
        dest="remedy",
        default="",
        metavar="REMEDY",
        help="measure with this remedy applied: micro-batch, checkpoint=PATH, bf16, set_to_none, no-foreach or fused",
    )
    parser.add_argument(
        "--try-for",
        type=_common.seconds,
        default=60.0,
        metavar="SECONDS",
        help="time for trying remedies; 0 tries none (default: 60)",
    )
    _common.add_script(parser, updates=8)
