"""`fallline COMMAND`: reads the command's options and hands over. Only that one command is imported."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from importlib import import_module

from fallline._version import __version__
from fallline.cli.commands import GROUPS, available
from fallline.cli.streams import cannot_write, give_up_writing, open_closed, write_plainly
from fallline.errors import FalllineError
from fallline.untrusted import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

__all__ = ["entry", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status of one command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _handed_over(arguments)
        if arguments[:1] != ["run"]:  # there it is the script's own affair, as without us
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("fallline: stopped", file=sys.stderr)
        return 130
    except OSError as error:
        if not cannot_write(error):
            raise
        return give_up_writing(error)


def _handed_over(arguments: list[str]) -> int:
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(overview())
        return 0 if arguments else 2
    if arguments[0] in {"-V", "--version"}:
        print(f"fallline {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in available():
        print(f"fallline: {printable(_unknown(arguments))}", file=sys.stderr)
        return 2
    command = import_module(f"fallline.cli.{name}")
    parser = _Parser(
        prog=f"fallline {name}",
        description=command.HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    if name != "run":
        write_plainly(sys.stdout)
        write_plainly(sys.stderr)
    try:
        args = parser.parse_args(rest)
    except SystemExit as stop:  # --help, or a mistake that argparse has told
        return int(stop.code or 0)
    try:
        return int(import_module(f"fallline.cli.work.{name}").run(args))
    except Exception as error:
        if isinstance(error, FalllineError):
            print(f"fallline {name}: {printable(str(error))}", file=sys.stderr)
            return 2
        if cannot_write(error) or os.environ.get("FALLLINE_TRACEBACK"):
            raise
        if isinstance(error, MemoryError):
            print(
                f"fallline {name}: there is not enough memory here for what was given: give less at a time",
                file=sys.stderr,
            )
            return 2
        reason = printable(" ".join(f"{type(error).__name__}: {error}".split()))
        print(
            f"fallline {name}: this is a mistake in fallline itself ({reason}). FALLLINE_TRACEBACK=1 shows where.",
            file=sys.stderr,
        )
        return 2


class _Parser(argparse.ArgumentParser):
    """Names the option that a mistyped one was meant to be, and what a missing verb can be."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments:"):
            from difflib import get_close_matches  # only for those who mistyped

            wrong = next((w for w in message.split() if w.startswith("-")), "").split("=")[0]
            near = get_close_matches(wrong, self._option_string_actions, 1)
            message += f". Did you mean {near[0]}?" if near else ""
        if message.startswith("the following arguments are required:"):
            for action in self._actions:
                if action.choices and message.endswith(f" {action.metavar}"):
                    message += f" ({', '.join(action.choices)})"
        super().error(message)


def _unknown(arguments: list[str]) -> str:
    from fallline.cli.meant import meant  # only for those who mistyped

    guess = meant(arguments)
    did = f" Did you mean `{guess}`?" if guess else ""
    return f"there is no command '{arguments[0]}'.{did} `fallline --help` lists them."


def entry() -> None:
    """The program. `check` and `ask` leave at once: taking their trees and tables down one by one takes long."""
    open_closed()
    at_once = sys.argv[1:2] in (["check"], ["ask"])
    if at_once:
        gc.disable()  # one answer makes little garbage, and its tables are many small things to look through
    status = main()
    if at_once:
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def overview() -> str:
    """What `fallline --help` prints."""
    have = available()
    lines = [
        "fallline makes PyTorch training trustworthy.",
        "",
        "usage: fallline COMMAND [OPTIONS]",
        "",
    ]
    for heading, rows in GROUPS:
        shown = [(c, text) for c, text in rows if c in have]
        if shown:
            lines += [f"{heading}:", *(f"  {c:<10} {text}" for c, text in shown), ""]
    lines += [
        "examples:",
        "  fallline check .                     what is wrong in this project's training code",
        "  fallline run train.py --epochs 3     train as usual, and watch",
        '  fallline ask "my loss is NaN"        what to measure, then what to change',
        "  fallline demo                        all three, on an example",
        "",
        "exit status: 0 no findings; 1 findings, a failure or a refuted claim (check, eval, prove),",
        "             2 wrong usage, or fallline failed; `run` exits as its script does",
        "environment: NO_COLOR, FORCE_COLOR; FALLLINE_TRACEBACK=1 shows where fallline failed",
        "",
        "`fallline COMMAND --help` says more. `fallline --version` prints the version.",
    ]
    return "\n".join(lines)
