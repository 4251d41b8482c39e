"""`fallline measure clip`: a threshold from a run's norms, a batch size from gradient noise, a learning rate from a range test."""

from __future__ import annotations

import argparse

from fallline.cli.measuring import _common

__all__ = ["HELP", "NEEDS_TORCH", "add_arguments"]

HELP = """\
max_norm from a run's own norms; batch size from gradient noise; a learning-rate range test

  fallline measure clip runs/a                          the folder of `fallline run --out runs/a train.py`
  fallline measure clip --noise-scale train.py          up to which size a larger batch helps
  fallline measure clip --lr-range --updates 100 train.py

Proposes a quantile of the norms before clipping as threshold, with the share of updates it would have clipped; with too
few norms, or no outliers, it proposes none. --noise-scale trains for some updates, then keeps the parameters fixed and
compares the gradients of the next batches. --lr-range replaces the script's learning rate by a growing one and shows
the loss at each rate.
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
        "--noise-scale", action="store_true", help="measure the useful batch size of a script"
    )
    what.add_argument(
        "--lr-range", action="store_true", help="run a learning-rate range test on a script"
    )
    parser.add_argument(
        "--updates",
        type=_common.count,
        metavar="N",
        help="with --noise-scale: updates to train first (default: 10); with --lr-range: number of rates to try (default: 100)",
    )
    parser.add_argument(
        "--gradients",
        type=_common.count,
        default=16,
        metavar="N",
        help="with --noise-scale: number of gradients to compare (default: 16)",
    )
    parser.add_argument(
        "--batch-size",
        type=_common.count,
        metavar="N",
        help="with --noise-scale: number of samples in a batch, if fallline cannot tell",
    )
    parser.add_argument(
        "--rates",
        nargs=2,
        type=float,
        default=(1e-6, 10.0),
        metavar=("START", "END"),
        help="with --lr-range: the smallest and the largest rate (default: 1e-06 10)",
    )
    _common.add_target(parser, "DIR|SCRIPT", "the run folder, or the script to run")
