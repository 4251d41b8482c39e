"""The options that the verbs of `fallline measure` share."""

from __future__ import annotations

import argparse

__all__ = ["add_output", "add_script", "add_target", "count", "seconds"]


def add_output(parser: argparse.ArgumentParser) -> None:
    """--output-format and --out, the same everywhere."""
    parser.add_argument(
        "--output-format",
        choices=("text", "json"),
        default="text",
        help="text (default) or json",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="write the measurement as JSON, and any other files, into this folder",
    )


def add_script(parser: argparse.ArgumentParser, *, updates: int, optional: bool = False) -> None:
    """The script to run, and for how many updates."""
    parser.add_argument(
        "--updates",
        type=count,
        default=updates,
        metavar="N",
        help=f"end the script after this many optimizer updates (default: {updates})",
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


def count(text: str) -> int:
    """A whole number from 1 up."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of at least 1")
    return int(text)


def count_from_zero(text: str) -> int:
    """A whole number from 0 up."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of at least 0")
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
