"""`fallline measure function`: a custom autograd Function."""

from __future__ import annotations

import argparse

from fallline.cli.measuring._common import add_output

__all__ = ["HELP", "add_arguments"]

HELP = """\
a custom autograd Function: gradcheck and everything else that training needs from it

  fallline measure function package.module:Square
  fallline measure function package.module:Scale --shapes 4x3 3
  fallline measure function package.module:Attend --inputs package.module:example_inputs

Tests gradcheck, gradgradcheck, the shapes that backward returns, float32, float16 and bfloat16, a second device, strided
inputs and gradients, autocast, undeclared in-place changes and tensors kept on ctx. Exit status 1 if a case fails.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="MODULE:FUNCTION", help="the Function, by module and name"
    )
    parser.add_argument(
        "--shapes", nargs="+", metavar="AxB", type=_shape, help="shapes of its tensor inputs"
    )
    parser.add_argument(
        "--inputs", metavar="MODULE:NAME", help="a tuple of inputs, or a function that returns one"
    )
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="CASE",
        help="leave this case out (repeatable)",
    )
    add_output(parser)


def _shape(text: str) -> tuple[int, ...]:
    parts = text.lower().replace(",", "x").split("x")
    if not all(p.isdecimal() for p in parts):
        raise argparse.ArgumentTypeError(f"'{text}' is not a shape; write it as 4x3")
    return tuple(int(p) for p in parts)
