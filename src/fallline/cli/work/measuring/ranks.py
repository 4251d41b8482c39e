"""What `fallline measure ranks` does."""

from __future__ import annotations

import argparse
import os
import sys

from fallline.cli.work.measuring import _common
from fallline.instruments.frame import Progress
from fallline.instruments.ranks import measure_ranks

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    script = _common.script(args) if args.target is not None else None
    with Progress("measuring ranks:") as progress:
        ranks = measure_ranks(
            script, updates=args.updates, seconds=args.answer_within, progress=progress
        )
    _common.deliver(ranks, args)
    if ranks.silent:
        print(f"fallline measure: {ranks.silent}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ranks.status)  # a collective that hangs would hold up the end of the process too
    return ranks.status
