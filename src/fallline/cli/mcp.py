"""`fallline mcp`: check, fix, ask and the rules for agents, over standard input and output or over HTTP on this machine."""

from __future__ import annotations

from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser

__all__ = ["HELP", "add_arguments"]

HELP = """\
Serve check, fix, ask and the rules to agents over the Model Context Protocol. Code is read, never run; nothing is written.

  fallline mcp                          over standard input and output
  fallline mcp --root ~/project         check_path, ask and read_run see this folder only
  fallline mcp --http --port 8733       streamable HTTP at http://127.0.0.1:8733/mcp, reachable from this machine only

Needs the official SDK: pip install 'fallline[mcp]'
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        metavar="DIR",
        type=Path,
        default=Path("."),
        help="read only files below this folder (default: the current one)",
    )
    parser.add_argument(
        "--http", action="store_true", help="serve streamable HTTP on the loopback interface"
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="N",
        help="the port for --http (default: 8733; 0 takes a free one)",
    )
