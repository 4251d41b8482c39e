"""`fallline skills DIR`"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["HELP", "add_arguments", "run"]

HELP = """\
Write the Agent Skills into a folder: a router and nine specialists, made from the playbooks and the rules of this version.

  fallline skills .agents/skills        read by Codex, Copilot, OpenCode and others
  fallline skills .claude/skills        read by Claude Code

Writing them again brings them up to date. Skills that are not fallline's are left as they are.
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the folder that holds the skills")


def run(args: Namespace) -> int:
    from pathlib import Path

    from fallline.errors import UsageError
    from fallline.report.skills import write

    if not args.folder:
        raise UsageError("name the folder that shall hold the skills, such as .agents/skills")
    homes = write(Path(args.folder))
    print(f"Wrote {len(homes)} skills below {args.folder}:")
    print("\n".join(f"  {home.name}" for home in homes))
    return 0
