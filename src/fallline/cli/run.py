"""`fallline run`: runs a training script and watches it."""

from __future__ import annotations

import argparse

__all__ = ["HELP", "OPTIONS", "add_arguments"]

OPTIONS = ("--out", "--budget", "--guard", "--log")

HELP = """\
Run a training script and watch it. The script itself is not changed: it has the same output, the same exit status and,
as long as no update is NaN or Inf, the same results bit for bit. --guard decides what happens to one that is.

  fallline run train.py --its --own arguments
  fallline run -m package.train --its --own arguments
  torchrun --nproc-per-node 2 -m fallline run train.py

The run folder (--out) keeps the findings with the line that causes them, the operation where the first NaN or Inf was
born, and the numbers of the updates. `fallline report` shows them again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "fallline run [--out DIR] [--budget PCT] [--guard skip|exact|stop|off] [--guard-limit aside|stop|none] [--check-hardware N] [--log NAME] (SCRIPT | -m MODULE) [ARGS ...]"
    parser.add_argument(
        "--out", metavar="DIR", help="the run folder (default: fallline-runs/SCRIPT-TIME)"
    )
    parser.add_argument(
        "--budget",
        type=_percent,
        default=1.0,
        metavar="PCT",
        help="time for measuring, in percent of the step time (default: 1)",
    )
    parser.add_argument(
        "--guard",
        choices=("skip", "exact", "stop", "off"),
        default="skip",
        help="what to do with an update that is found to be NaN or Inf: skip (the default) leaves it out without waiting for an accelerator, "
        "exact leaves it out and waits for the device before each step, stop ends the run with an error, off applies it",
    )
    parser.add_argument(
        "--guard-limit",
        choices=("aside", "stop", "none"),
        default="aside",
        help="what to do after 10 such updates in a row, or more than 5%% of the last 200: aside (the default) applies them from then on, "
        "stop ends the run with an error, none keeps leaving them out",
    )
    parser.add_argument(
        "--check-hardware",
        type=_count,
        default=0,
        metavar="N",
        help="every N updates compute a micro-batch again and compare it bit for bit, and compare the state of the ranks: finds a processor or "
        "memory that corrupts numbers (FL325). Each check takes about as long as a forward and a backward pass (default: off)",
    )
    parser.add_argument(
        "--log",
        action="append",
        choices=("tensorboard", "wandb", "mlflow", "trackio", "opentelemetry"),
        help="also log numbers and findings to this tool: to the run that the script has open, or to a new local one (repeatable)",
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the target is a module, as in python -m"
    )
    parser.add_argument("target", metavar="SCRIPT", help="the script to run")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's own arguments"
    ).required = False  # argparse would ask for them


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) == 1:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a number of updates, 2 or more; say --check-hardware 200 for one check in 200 updates"
        )
    return int(text)


def _percent(text: str) -> float:
    try:
        value = float(text.rstrip("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a percentage; say --budget 1 for one percent of the step time"
        )
    return value
