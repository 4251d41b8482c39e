"""Lines of the user's source beside a finding of a run.

The run says where its source is, and a run may come from anybody: it must not make us copy other files into a page. So only Python
files are opened, of bounded size, and only below a folder that is the reader's own: the working directory, or the project that
the run folder itself lies in.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from fallline.finding import Finding
from fallline.runs.series import Series
from fallline.untrusted import printable, read_file

__all__ = ["Excerpt", "excerpt", "project_of"]

_LARGEST = 5_000_000  # bytes of a source file
_SUFFIXES = (".py", ".pyw", ".pyi")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of the user's source around a finding: (line number, text, whether it is the line itself)."""

    lines: list[tuple[int, str, bool]]
    changed: bool = False  # the file is newer than the run


def excerpt(finding: Finding, series: Series, around: int = 3) -> Excerpt:
    """Empty when the source is not there (any more), or not ours to show. Of a notebook's cell it is in the run itself."""
    meta = series.meta
    cell = (meta.get("cells") or {}).get(finding.at.path)
    if cell is not None:
        text, changed = cell.splitlines(), False
    else:
        path = _allowed(Path(meta.get("cwd") or ".") / finding.at.path, series)
        if path is None:
            return Excerpt([])
        try:
            text = read_file(path, _LARGEST).decode("utf-8", errors="replace").splitlines()
            changed = path.stat().st_mtime > (meta.get("ended") or math.inf)
        except OSError:
            return Excerpt([])
    first, last = max(1, finding.at.line - around), min(len(text), finding.at.line + around)
    return Excerpt(
        [
            (n, printable(text[n - 1].replace("\t", "    ")), n == finding.at.line)
            for n in range(first, last + 1)
        ],
        changed,
    )


def project_of(series: Series) -> Path | None:
    """The folder that the run was started in, where that can be believed: see above. None: it cannot."""
    recorded = series.meta.get("cwd")
    if not recorded:
        return None
    try:
        folder = Path(recorded).resolve()
        home = series.folder.resolve() if series.folder is not None else None
        if series.meta.get("pid") == os.getpid() or folder.is_relative_to(Path.cwd()):
            return folder  # this very process, or below the reader's own folder
    except (OSError, RuntimeError, ValueError):
        return None
    if home is None or not home.is_relative_to(folder) or folder in _too_wide():
        return None
    return folder


def _too_wide() -> set[Path]:
    """The home folder and everything above it: to lie below these says nothing."""
    try:
        home = Path.home().resolve()
    except (OSError, RuntimeError):
        home = Path(os.sep)
    return {home, *home.parents}


def _allowed(path: Path, series: Series) -> Path | None:
    try:
        real = path.resolve()
        roots = [Path.cwd(), project_of(series), _scripts_folder(series)]
    except (OSError, RuntimeError, ValueError):
        return None
    inside = any(root is not None and real.is_relative_to(root) for root in roots)
    return real if inside and real.suffix in _SUFFIXES else None


def _scripts_folder(series: Series) -> Path | None:
    """The folder of the script, while the process that runs it is this one."""
    script = series.meta.get("script")
    if not script or series.meta.get("pid") != os.getpid():
        return None
    return (Path(series.meta.get("cwd") or ".") / str(script)).resolve().parent
