"""`fallline skills DIR`"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser

__all__ = ["HELP", "add_arguments"]

HELP = """\
Write the Agent Skills into a folder: a router and ten specialists, made from the playbooks and the rules of this version.

  fallline skills .agents/skills        read by Codex, Copilot, OpenCode and others
  fallline skills .claude/skills        read by Claude Code

Writing them again brings them up to date. Skills that are not fallline's are left as they are.
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the folder to write the skills into")
