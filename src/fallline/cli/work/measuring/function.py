"""What `fallline measure function` does."""

from __future__ import annotations

import argparse

from fallline.cli.work.measuring._common import deliver
from fallline.errors import UsageError
from fallline.instruments.function.check import check_function, shaped
from fallline.instruments.target import named_object

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    inputs: tuple[object, ...] = ()
    if args.inputs:
        given = named_object(args.inputs)
        given = given() if callable(given) else given
        if not isinstance(given, tuple | list):
            raise UsageError(
                f"--inputs {args.inputs} gave a {type(given).__name__}: a tuple is needed"
            )
        inputs = tuple(given)
    elif args.shapes:
        inputs = tuple(shaped(args.shapes))
    report = check_function(named_object(args.target), *inputs, skip=args.skip)
    deliver(report, args)
    if report.partial:
        return 130
    return 1 if report.failures else 0
