"""What `fallline skills` does."""

from __future__ import annotations

from fallline.errors import UsageError
from fallline.report.skills import write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["run"]


def run(args: Namespace) -> int:
    from pathlib import Path

    if not args.folder:
        raise UsageError("name the folder to write the skills into, such as .agents/skills")
    homes = write(Path(args.folder))
    print(f"Wrote {len(homes)} skills below {args.folder}:")
    print("\n".join(f"  {home.name}" for home in homes))
    return 0
