"""What `fallline measure memory` does."""

from __future__ import annotations

import argparse

from fallline.cli.work.measuring import _common
from fallline.instruments.frame import Progress
from fallline.instruments.memory.measure import measure_memory
from fallline.instruments.memory.trials import try_remedies

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    script = _common.script(args)
    with Progress("measuring memory:", args.updates) as progress:
        memory = measure_memory(script, updates=args.updates, remedy=args.remedy, progress=progress)
    if args.try_for and not args.remedy and not memory.partial:
        with Progress("measuring memory: remedy", len(memory.remedies)) as progress:
            try_remedies(memory, script, args.try_for, progress)
    snapshot = memory.allocator.file() if memory.allocator is not None else None
    _common.deliver(memory, args, {"snapshot.pickle": snapshot} if snapshot else None)
    return memory.status
