"""What the verbs of `fallline measure` have in common: naming a script, and delivering what was measured."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fallline.errors import UsageError

if TYPE_CHECKING:
    from fallline.instruments.frame import Measurement
    from fallline.instruments.script import Script

__all__ = ["add_output", "add_script", "add_target", "count", "deliver", "script", "seconds"]


def add_output(parser: argparse.ArgumentParser) -> None:
    """--output-format and --out, the same everywhere."""
    parser.add_argument(
        "--output-format",
        choices=("text", "json"),
        default="text",
        help="what is printed (default: text)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="a folder for the measurement as JSON, and its other files"
    )


def add_script(parser: argparse.ArgumentParser, *, updates: int, optional: bool = False) -> None:
    """The script to run, and for how many updates."""
    parser.add_argument(
        "--updates",
        type=count,
        default=updates,
        metavar="N",
        help=f"end the script after so many optimizer updates (default: {updates})",
    )
    add_target(parser, "SCRIPT", "the script to run", optional=optional)


def add_target(
    parser: argparse.ArgumentParser, name: str, what: str, *, optional: bool = False
) -> None:
    """What is measured, with the script's own arguments."""
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the target is a module, as in python -m"
    )
    parser.add_argument("target", nargs="?" if optional else None, metavar=name, help=what)
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's own arguments"
    ).required = False  # argparse would ask for them


def script(args: argparse.Namespace) -> Script:
    """The script that `add_script` was given. A missing one is said before anything is run."""
    from fallline.instruments.script import Script

    if not args.module and not os.path.exists(args.target):
        raise UsageError(f"cannot open {args.target}: no such file")
    return Script(args.target, tuple(args.arguments), args.module)


def count(text: str) -> int:
    """A whole number from 1 up."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of at least 1")
    return int(text)


def seconds(text: str) -> float:
    """A time, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds")
    return value


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
    from fallline.files import write_atomically

    try:
        os.makedirs(folder, exist_ok=True)
        for name, data in files.items():
            write_atomically(os.path.join(folder, name), data)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}") from None
