"""The command line reference, from the parsers themselves.

argparse's own help is laid out differently by each Python version; this page is not.
"""

from __future__ import annotations

import argparse
from importlib import import_module

from fallline.cli.commands import GROUPS, available

__all__ = ["page"]


def page() -> str:
    """Every command with its options."""
    have = available()
    parts = [
        "# Command line",
        "`fallline COMMAND --help` prints the same. This page is made by `make docs`.",
    ]
    for heading, rows in GROUPS:
        shown = [row for row in rows if row[0] in have]
        if shown:
            parts.append(f"## {heading[0].upper()}{heading[1:]}")
            parts += [_command(name, about) for name, about in shown]
    return "\n\n".join(parts) + "\n"


def _command(name: str, about: str) -> str:
    command = import_module(f"fallline.cli.{name}")
    parser = argparse.ArgumentParser(prog=f"fallline {name}")
    command.add_arguments(parser)
    lines = [
        f"### fallline {name}",
        "",
        f"{about[0].upper()}{about[1:]}.",
        "",
        "```text",
        command.HELP.strip(),
        "```",
    ]
    rows = [row for action in parser._actions for row in _rows(action, f"fallline {name}")]
    if rows:
        lines += ["", "| option | meaning |", "|---|---|", *rows]
    return "\n".join(lines)


def _rows(action: argparse.Action, command: str) -> list[str]:
    if isinstance(action, argparse._SubParsersAction):
        return [
            row
            for name, sub in action.choices.items()
            for row in _subcommand(f"{command} {name}", sub)
        ]
    if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
        return []
    names = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if action.option_strings and action.nargs != 0:
        values = (
            "{" + ",".join(map(str, action.choices)) + "}"
            if action.choices
            else str(action.metavar or action.dest.upper())
        )
        names += f" {values}"
    meaning = " ".join(((action.help or "") % {"default": action.default, "prog": command}).split())
    return [f"| `{_escaped(names)}` | {_escaped(meaning)} |"]


def _subcommand(command: str, parser: argparse.ArgumentParser) -> list[str]:
    inner = [row for action in parser._actions for row in _rows(action, command)]
    return [f"| **`{command}`** | {_escaped(parser.description or '')} |", *inner]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
