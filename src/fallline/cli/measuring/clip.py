"""`fallline measure clip`: a threshold from a run's norms, a batch size from gradient noise, a learning rate from a range test."""

from __future__ import annotations

import argparse
import importlib.util
import os

from fallline.cli.measuring import _common
from fallline.errors import UsageError

__all__ = ["HELP", "NEEDS_TORCH", "add_arguments", "run"]

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


def run(args: argparse.Namespace) -> int:
    if args.noise_scale or args.lr_range:
        return _of_script(args)
    from fallline.instruments.clip.threshold import propose_clip

    if os.path.isfile(args.target):
        raise UsageError(
            f"{args.target} is a file, and a threshold comes from a run: `fallline run --out DIR {args.target}`, then "
            "`fallline measure clip DIR` (or --noise-scale or --lr-range, which run a script)"
        )
    if args.arguments:
        raise UsageError(f"one run folder at a time: {' '.join(args.arguments)} is left over")
    _common.deliver(propose_clip(args.target, quantile=args.quantile), args)
    return 0


def _of_script(args: argparse.Namespace) -> int:
    option = "--noise-scale" if args.noise_scale else "--lr-range"
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            f"`fallline measure clip {option}` needs torch, which is not installed here: pip install 'fallline[torch]'"
        )
    from fallline.instruments.clip.noise import noise_scale_of_script
    from fallline.instruments.clip.rates import lr_range_of_script
    from fallline.instruments.frame import Progress

    script = _common.script(args)
    if args.noise_scale:
        updates = args.updates or 10
        with Progress("measuring gradient noise:", updates + args.gradients) as progress:
            noise = noise_scale_of_script(
                script,
                updates=updates,
                gradients=args.gradients,
                batch_size=args.batch_size,
                progress=progress,
            )
        _common.deliver(noise, args)
        return noise.status
    start, end = args.rates
    with Progress("trying learning rates:", args.updates or 100) as progress:
        rates = lr_range_of_script(
            script, start=start, end=end, updates=args.updates or 100, progress=progress
        )
    _common.deliver(rates, args)
    return rates.status
