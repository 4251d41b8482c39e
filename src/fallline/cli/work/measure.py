"""What `fallline measure` does."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from importlib import import_module

from fallline.errors import UsageError
from fallline.instruments.script import NothingMeasured

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    verb = import_module(f"fallline.cli.measuring.{args.verb}")
    if getattr(verb, "NEEDS_TORCH", True) and importlib.util.find_spec("torch") is None:
        raise UsageError(
            f"`fallline measure {args.verb}` needs torch, which is not installed here: pip install 'fallline[torch]'"
        )
    try:
        return int(import_module(f"fallline.cli.work.measuring.{args.verb}").run(args))
    except NothingMeasured as nothing:
        print(f"fallline measure: {nothing}", file=sys.stderr)
        return nothing.status
