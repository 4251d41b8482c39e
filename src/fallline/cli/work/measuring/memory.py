"""What `fallline measure memory` does."""

from __future__ import annotations

import argparse

from fallline.cli.work.measuring import _common
from fallline.instruments.frame import Progress
from fallline.instruments.memory.measure import measure_memory

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    script = _common.script(args)
    with Progress("measuring memory:", args.updates) as progress:
        memory = measure_memory(script, updates=args.updates, remedy=args.remedy, progress=progress)
    if args.try_for and not args.remedy and not memory.partial:
        # imports torch, which the script shall do itself: it may have something to set before
        from fallline.instruments.memory.trials import try_remedies

        with Progress("measuring memory: remedy", len(memory.remedies)) as progress:
            try_remedies(memory, script, args.try_for, progress)
    snapshot = memory.allocator.file() if memory.allocator is not None else None
    _common.deliver(memory, args, {"snapshot.pickle": snapshot} if snapshot else None)
    return memory.status
