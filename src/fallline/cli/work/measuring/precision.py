"""What `fallline measure precision` does."""

from __future__ import annotations

import argparse

from fallline.cli.work.measuring._common import deliver, script
from fallline.errors import UsageError
from fallline.instruments.precision.script import precision_of_script

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    if args.table:
        # imports torch, which the script shall do itself: it may have something to set before; here there is no script
        from fallline.instruments.precision.table import autocast_table

        deliver(autocast_table(args.device), args)
        return 0
    if args.target is None:
        raise UsageError(
            "name the script to measure, or --table: fallline measure precision train.py"
        )
    report, ran = precision_of_script(script(args), update=args.updates, timing=not args.no_timing)
    deliver(report, args)
    if report.partial or ran.interrupted:
        return 130
    return ran.status
