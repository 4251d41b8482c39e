"""The user's line behind what is just happening, where there is one."""

from __future__ import annotations

import os
import sys

from fallline.location import Location
from fallline.taps.frames import place, shown_path

__all__ = ["user_line"]


def user_line() -> Location | None:
    """The innermost line of the user's; a program beside the interpreter (bin/fallline, bin/pytest) is not his."""
    found = place()
    if found is None:
        return None
    programs = shown_path(os.path.dirname(sys.executable))
    return None if os.path.dirname(found.at.path) == programs else found.at
