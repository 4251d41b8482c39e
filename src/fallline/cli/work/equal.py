"""What `fallline equal` does."""

from __future__ import annotations

import argparse
import importlib.util

from fallline.cli.work.measuring import _common
from fallline.errors import UsageError

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "`fallline equal` needs torch, which is not installed here: pip install 'fallline[torch]'"
        )
    from fallline.instruments.equal import equal  # imports torch
    from fallline.instruments.frame import Progress

    script = _common.script(args)
    with Progress("making the update in other ways: run") as progress:
        answer = equal(
            script, ranks=args.ranks, only=args.only, update=args.update, progress=progress
        )
    args.verb = "equal"
    _common.deliver(answer, args)
    return answer.status or {"equal": 0, "different": 1}.get(answer.verdict, 2)
