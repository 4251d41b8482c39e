"""What `fallline measure clip` does."""

from __future__ import annotations

import argparse
import importlib.util
import os

from fallline.cli.work.measuring import _common
from fallline.errors import UsageError
from fallline.instruments.clip.threshold import propose_clip
from fallline.instruments.frame import Progress

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    if args.noise_scale or args.lr_range:
        return _of_script(args)
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
    # these two need torch; a threshold from a run folder does not
    from fallline.instruments.clip.noise_script import noise_scale_of_script
    from fallline.instruments.clip.rates_script import lr_range_of_script

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
