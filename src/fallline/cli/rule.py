"""`fallline rule CODE`"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser


__all__ = ["HELP", "add_arguments"]

HELP = """\
Explain a rule: what it finds, why it is bad, what to write instead.

  fallline rule FL201
  fallline rule clip-scaled --output-format markdown
  fallline rule --all
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("code", nargs="*", metavar="CODE", help="a rule's code or name")
    parser.add_argument(
        "--all",
        action="store_true",
        help="all rules: a table as text, every page in the other formats",
    )
    parser.add_argument(
        "--output-format",
        choices=("text", "markdown", "json"),
        default="text",
        help="text (default), markdown or json",
    )
