"""`fallline demo`"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser


__all__ = ["HELP", "add_arguments"]

HELP = """\
See check, run and ask at work: a script with four mistakes is read, explained and fixed; a script that goes NaN is run,
the birth of the NaN named and removed; two questions are asked. Everything happens in a temporary folder.

  fallline demo
  fallline demo rnn                       one of five whole training scripts, broken and repaired, read and run
  fallline demo --color always | less -R
"""

# The scripts under examples/, with arguments for a run of seconds.
EXAMPLES = {
    "char_language_model": ("--updates", "100"),
    "image_classifier": ("--epochs", "3"),
    "rnn": ("--updates", "300"),
    "gan": ("--updates", "300"),
    "policy_gradient": ("--episodes", "60"),
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "example",
        nargs="?",
        choices=tuple(EXAMPLES),
        metavar="EXAMPLE",
        help=f"{', '.join(EXAMPLES)}; without one, check, run and ask on small scripts",
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto (default), always or never",
    )
