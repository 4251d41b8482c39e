"""What `fallline measure model` does."""

from __future__ import annotations

import argparse
import os
from typing import Any

from fallline.cli.work.measuring._common import deliver, script
from fallline.errors import UsageError
from fallline.instruments.model.script import model_of_script
from fallline.instruments.target import named_object

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    status = 0
    if ":" in args.target and not os.path.exists(args.target):
        # imports torch, which the script shall do itself: it may have something to set before; here there is no script
        from fallline.instruments.model import measure_model

        model, inputs = _built(named_object(args.target), args.target)
        report = measure_model(model, *inputs)
    else:
        report, ran = model_of_script(script(args), update=args.updates)
        status = 130 if ran.interrupted else ran.status
    deliver(report, args)
    return 130 if report.partial else status


def _built(thing: Any, target: str) -> tuple[Any, tuple[Any, ...]]:
    """The model itself, or what a function or class without arguments gives."""
    from torch import nn

    if not isinstance(thing, nn.Module):
        if not callable(thing):
            raise UsageError(
                f"{target} is a {type(thing).__name__}: name a model, or a function or class that gives one"
            )
        try:
            thing = thing()
        except TypeError as error:
            raise UsageError(
                f"{target} cannot be called without arguments ({error}): name a function that can"
            ) from None
    if isinstance(thing, tuple) and thing and isinstance(thing[0], nn.Module):
        return thing[0], thing[1:]
    if not isinstance(thing, nn.Module):
        raise UsageError(
            f"{target} gave a {type(thing).__name__}, not a torch.nn.Module (or a tuple that begins with one)"
        )
    return thing, ()
