"""What the verbs of `fallline measure` have in common: finding the script, and delivering what was measured."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping

from fallline.errors import UsageError
from fallline.files import write_atomically
from fallline.instruments.frame import Measurement
from fallline.instruments.script import Script

__all__ = ["deliver", "script"]


def script(args: argparse.Namespace) -> Script:
    """The script that `add_script` was given. A missing one is said before anything is run."""
    if not args.module and not os.path.exists(args.target):
        raise UsageError(f"cannot open {args.target}: no such file")
    return Script(args.target, tuple(args.arguments), args.module)


def deliver(
    measurement: Measurement,
    args: argparse.Namespace,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Print it, and write DIR/<verb>.json and the other files where --out says so. Under torchrun, rank 0 does."""
    if os.environ.get("RANK", "0") != "0":
        return
    as_json = json.dumps(measurement.to_json(), indent=2, ensure_ascii=False) + "\n"
    if args.output_format == "json":
        sys.stdout.write(as_json)
    else:
        print(measurement.text().rstrip())
    if args.out:
        _write(args.out, {f"{args.verb}.json": as_json.encode(), **(files or {})})
        if args.output_format == "text":
            print(f"\n  {os.path.join(args.out, args.verb + '.json')}")
            for name in files or {}:
                print(f"  {os.path.join(args.out, name)}")


def _write(folder: str, files: Mapping[str, bytes]) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
        for name, data in files.items():
            write_atomically(os.path.join(folder, name), data)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}") from None
