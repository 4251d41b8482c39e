"""What `fallline measure time` does."""

from __future__ import annotations

import argparse

from fallline.cli.work.measuring import _common
from fallline.instruments.frame import Progress
from fallline.instruments.timing.measure import measure_time

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    script = _common.script(args)
    with Progress("measuring time:", args.updates) as progress:
        timing = measure_time(
            script, updates=args.updates, loader_for=args.loader_for, progress=progress
        )
    _common.deliver(timing, args, {"trace.json": timing.trace} if timing.trace else None)
    return timing.status
