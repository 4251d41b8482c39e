"""`fallline measure clip`: a threshold from a run's norms, a batch size from gradient noise, a learning rate from a range test."""

from __future__ import annotations

import argparse

from fallline.cli.measuring import _common

__all__ = ["HELP", "NEEDS_TORCH", "add_arguments"]

HELP = """\
max_norm from a run's own norms; batch size from gradient noise; a learning-rate range test

  fallline measure clip runs/a                          the folder of `fallline run --out runs/a train.py`
  fallline measure clip --noise-scale train.py          how large a batch still helps, here
  fallline measure clip --lr-range --updates 100 train.py

The threshold is a quantile of the norms before clipping, with the share of updates that it would have clipped; too few
norms, or no outliers, and there is none. --noise-scale trains for some updates, then holds the parameters still and compares the
gradients of the next batches. --lr-range replaces the script's rates by growing ones and shows the loss over them.
"""

NEEDS_TORCH = False  # a run folder is read without


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _common.add_output(parser)
    parser.add_argument(
        "--quantile",
        type=float,
        default=0.9,
        metavar="Q",
        help="the share of norms that stays below the threshold (default: 0.9)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--noise-scale", action="store_true", help="of a script: the useful batch size"
    )
    what.add_argument(
        "--lr-range", action="store_true", help="of a script: the learning-rate range test"
    )
    parser.add_argument(
        "--updates",
        type=_common.count,
        metavar="N",
        help="--noise-scale: train for so many before (default: 10); --lr-range: try so many rates (default: 100)",
    )
    parser.add_argument(
        "--gradients",
        type=_common.count,
        default=16,
        metavar="N",
        help="--noise-scale: compare so many gradients (default: 16)",
    )
    parser.add_argument(
        "--batch-size",
        type=_common.count,
        metavar="N",
        help="--noise-scale: samples in a batch, where they cannot be seen",
    )
    parser.add_argument(
        "--rates",
        nargs=2,
        type=float,
        default=(1e-6, 10.0),
        metavar=("START", "END"),
        help="--lr-range: the smallest and the largest rate (default: 1e-06 10)",
    )
    _common.add_target(parser, "DIR|SCRIPT", "the run folder, or the script to run")
