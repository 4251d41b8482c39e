"""`fallline bisect`: which commit, or which option, changed the training."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["HELP", "add_arguments"]

HELP = """\
Find the commit, or the option, that changed the training. Trains the first updates at the good end, then halfway to the bad one, and so on,
and compares each run with the good one, as `fallline diff` does.

  fallline bisect --good v1.2 train.py --epochs 1
  fallline bisect --good 3f2a1c0 --bad HEAD~3 --updates 50 --link data train.py
  fallline bisect --good-options "--lr 0.1 --wd 0 --warmup 100" train.py --lr 0.1 --wd 0.1 --warmup 0

Commits are checked out into worktrees in a temporary folder, so your own files stay as they are; --link puts files there that are
not in the repository. Between two sets of options, one option at a time is changed to its bad value. What the script does not seed is
seeded, nothing it writes is written, and what does not run is skipped.

exit status: 0 both ends train the same within noise, 1 the first change was found, 2 it could not be determined
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "fallline bisect (--good COMMIT [--bad COMMIT] | --good-options OPTIONS) [--updates N] (SCRIPT | -m MODULE) [ARGS ...]"
    parser.add_argument("--good", metavar="COMMIT", help="a commit at which training was right")
    parser.add_argument("--bad", metavar="COMMIT", default="HEAD", help="a commit at which it is wrong (default: HEAD)")  # fmt: skip
    parser.add_argument(
        "--good-options", metavar="OPTIONS", help="arguments with which training was right"
    )
    parser.add_argument(
        "--updates",
        type=int,
        default=30,
        metavar="N",
        help="compare this many updates (default: 30)",
    )
    parser.add_argument(
        "--link",
        metavar="PATH",
        type=Path,
        action="append",
        default=[],
        help="a file or folder that the script needs but that is not in the repository (repeatable)",
    )
    parser.add_argument(
        "--output-format", choices=("text", "json"), default="text", help="text (default) or json"
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the target is a module, as in python -m"
    )
    parser.add_argument("target", metavar="SCRIPT", help="the script to run")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's own arguments"
    ).required = False  # argparse would ask for them
