"""`fallline equal`: compares one update with the same update made in other ways."""

from __future__ import annotations

import argparse

from fallline.cli.measuring import _common

__all__ = ["HELP", "add_arguments"]

WHAT = ("accumulation", "remainder", "features", "precision", "order", "padding", "labels", "evaluation", "ranks")  # fmt: skip
HELP = """\
Does the loop compute what you think? Makes one real update of a training script, then the same update in other ways,
and compares the gradients in length and direction.

  fallline equal train.py --its --own arguments
  fallline equal --ranks 2 train.py
  fallline equal --out equal train.py

What is compared: the micro-batches of an accumulation against their samples at once; the remainder of an epoch; with
against without activation checkpointing, torch.compile, autocast, fused attention and optimizer kernels; float32
against float64; other orders and paddings; one process against several; the training loss against the evaluation's. Only what the script uses is
varied, and what could not be varied is listed with the reason.

Every run is a process of its own that ends after the first update (or the one that --update names). Nothing the script writes is written.
Exit status: 0 equal, 1 different, 2 wrong usage, or nothing could be compared.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "fallline equal [--out DIR] [--ranks N] [--update N] [--only WHAT] [--output-format text|json] (SCRIPT | -m MODULE) [ARGS ...]"
    _common.add_output(parser)
    parser.add_argument(
        "--ranks",
        type=_common.count,
        default=2,
        metavar="N",
        help="how many processes to compare with one, for a script that can run on several (default: 2; 1 skips this)",
    )
    parser.add_argument(
        "--update",
        type=_common.count_from_zero,
        default=0,
        metavar="N",
        help="which update to compare, counted from 0; those before it are made as written (default: 0)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WHAT",
        choices=WHAT,
        help=f"compare only this: {', '.join(WHAT)} (repeatable)",
    )
    _common.add_target(parser, "SCRIPT", "the script to run")
