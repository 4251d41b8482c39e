"""`fallline ask`: answers a question, with code and a run as evidence, and says what to measure before what to change."""

from __future__ import annotations

import argparse

HELP = """\
Ask a training question. The answer says what is known from your code and your run, what to measure next, which fix
to choose under which condition, what to avoid and why, and how to verify. It measures nothing itself.

  fallline ask "my loss becomes NaN after epoch 3"
  fallline ask "is my accumulation right?" --code train.py
  fallline ask "why did it diverge?" --run fallline-runs/train-20261115-101500
  fallline ask - < question.txt
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "question",
        nargs="+",
        metavar="QUESTION",
        help="the question, quoted or not; - reads it from standard input",
    )
    parser.add_argument(
        "--code",
        action="append",
        default=[],
        metavar="FILE",
        help="the training code that the question is about (repeatable)",
    )
    parser.add_argument(
        "--run", metavar="DIR", help="the folder of a run that `fallline run` watched"
    )
    parser.add_argument(
        "--output-format",
        choices=("text", "markdown", "json"),
        default="text",
        help="text (default), markdown or json",
    )
    parser.add_argument(
        "--more",
        action="store_true",
        help="print the whole answer, with the decision tree and the facts behind each statement",
    )
