"""`fallline measure VERB`: finds the instrument's module and hands over."""

from __future__ import annotations

import argparse
import os
from importlib import import_module

__all__ = ["HELP", "VERBS", "add_arguments"]

HELP = """\
Measure before you prescribe. Each verb is one instrument; `fallline measure VERB --help` says more.

  fallline measure memory train.py --its --own arguments
  fallline measure time --updates 20 train.py
  fallline measure memory --output-format json --out measured train.py

The script runs for a number of updates and is then ended; its own output goes to standard error. Measuring does not
change the model, the random numbers or the results. Ctrl-C ends the script and shows what was measured so far.
"""

# Each verb is one module: fallline/cli/measuring/<verb>.py with HELP (its first line is the verb's line here),
# add_arguments(parser) and run(args) -> exit status; NEEDS_TORCH = False where it can do without.
VERBS = (
    "data",
    "precision",
    "memory",
    "time",
    "ranks",
    "same",
    "clip",
    "model",
    "function",
    "plan",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in available():
        verb = import_module(f"fallline.cli.measuring.{name}")
        first = verb.HELP.strip().splitlines()[0]
        inner = verbs.add_parser(
            name,
            help=first,
            description=verb.HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_arguments(inner)


def available() -> list[str]:
    """The verbs that this installation has."""
    here = os.path.join(os.path.dirname(__file__), "measuring")
    return [v for v in VERBS if os.path.exists(os.path.join(here, v + ".py"))]
