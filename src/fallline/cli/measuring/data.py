"""`fallline measure data`: what the first batches teach."""

from __future__ import annotations

import argparse

from fallline.cli.measuring import _common

__all__ = ["HELP", "add_arguments"]

HELP = """\
what the first batches teach: which tokens are learned, padding, packing, and what can learn from them

  fallline measure data train.py --its --own arguments
  fallline measure data --out looked --batches 8 train.py

Runs the script until its first batches have reached the model, in any loop or trainer, and shows them decoded: tokens that are
learned, tokens that are only read, padding, borders of packed samples. Reports each mistake with its code: an end token that is never
learned, labels shifted twice, padding in the loss, adapters that train nothing, training samples in the evaluation set. Then lists
which parameters get a gradient and are optimized, and, where a policy is trained, how far sampler and trainer agree.
With --out, also writes findings.json and data.html.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _common.add_output(parser)
    parser.add_argument(
        "--batches",
        type=_common.count,
        default=4,
        metavar="N",
        help="look at this many batches, then end the script (default: 4)",
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour the tokens (default: auto)",
    )
    _common.add_target(parser, "SCRIPT", "the script to run")
