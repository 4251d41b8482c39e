"""`fallline demo`"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser


__all__ = ["HELP", "add_arguments"]

HELP = """\
See check, run and ask at work: check finds, explains and fixes four mistakes in a script; run finds the line where a
NaN was born, and the line is repaired; ask answers two questions. Everything happens in a temporary folder.

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
