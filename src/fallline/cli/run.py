"""`fallline run`: a training script, watched."""

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
    parser.usage = "fallline run [--out DIR] [--budget PCT] [--guard skip|exact|stop|off] [--guard-limit aside|stop|none] [--log NAME] (SCRIPT | -m MODULE) [ARGS ...]"
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
        help="what to do with an update that is found to be NaN or Inf: leave it out (skip, the default: an accelerator is not waited for), "
        "leave it out exactly (exact: waits for the device before each step), end the run with an error (stop), or apply it (off)",
    )
    parser.add_argument(
        "--guard-limit",
        choices=("aside", "stop", "none"),
        default="aside",
        help="what to do after 10 such updates in a row, or more than 5%% of the last 200: apply them from then on (aside, the default), "
        "end the run with an error (stop), or keep leaving them out (none)",
    )
    parser.add_argument(
        "--log",
        action="append",
        choices=("tensorboard", "wandb", "mlflow", "trackio", "opentelemetry"),
        help="also log numbers and findings there: to the script's own run, or to a new local one if it has none (repeatable)",
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the target is a module, as in python -m"
    )
    parser.add_argument("target", metavar="SCRIPT", help="the script to run")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's own arguments"
    ).required = False  # argparse would ask for them


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
