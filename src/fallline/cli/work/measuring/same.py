"""What `fallline measure same` does."""

from __future__ import annotations

import argparse
import shlex

from fallline.cli.work.measuring import _common
from fallline.instruments.frame import Progress
from fallline.instruments.same import measure_same

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    script = _common.script(args)
    with Progress("comparing runs:") as progress:
        same = measure_same(
            script,
            updates=args.updates,
            ranks=args.ranks,
            resume=shlex.split(args.resume) if args.resume is not None else None,
            stop=args.stop,
            pin=not args.no_pin,
            progress=progress,
        )
    _common.deliver(same, args)
    return same.status or (0 if same.same else 1)
