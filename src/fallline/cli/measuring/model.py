"""`fallline measure model`: registration, dead units, initialisation and gradient flow."""

from __future__ import annotations

import argparse

from fallline.cli.measuring._common import add_output, add_script

__all__ = ["HELP", "add_arguments"]

HELP = """\
a model: unregistered parameters, dead units, initialisation and gradient flow

  fallline measure model package.models:build     a function or class that returns the model (or (model, input, ...))
  fallline measure model train.py --its --own arguments

Runs one batch, forward and backward: the batch of the script's update, the one that the callable returns, or random
numbers in the shape that the first layer takes. Says which parameters are unregistered, shared or unused, which units are
dead, and how signal and gradient change from layer to layer.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    add_script(parser, updates=1)
