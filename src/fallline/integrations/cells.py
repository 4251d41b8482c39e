"""What the cells of a notebook are called, so that findings can name them."""

from __future__ import annotations

import linecache
from typing import Any

from fallline.taps import frames

__all__ = ["name_cells"]


def name_cells(shell: Any) -> None:
    """Findings name the cells of this notebook: `In[3]`."""
    frames.name_cells(_CellNames(shell))


class _CellNames:
    """`In[3]` for the file that IPython compiles the third cell under; its source stays readable under that name."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def __call__(self, filename: str) -> tuple[str, str] | None:
        # (label, name), or None where it is not a cell
        found = self.shell.compile.format_code_name(filename)
        if found is None or found[0] != "Cell":
            return None
        name = str(found[1])
        lines = linecache.getlines(filename)
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
        return name, "".join(lines)
