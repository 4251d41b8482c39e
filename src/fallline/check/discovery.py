"""Paths as given → the files to read, always in the same order."""

from __future__ import annotations

import os

from fallline.check.patterns import matches
from fallline.files import TEMPORARY, sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fallline.check.settings import Settings

__all__ = ["Problem", "below", "discover", "excluded", "shown"]

SUFFIXES = (".py", ".ipynb")
# Folders that hold other people's code or no code. Hidden folders are left out as well.
SKIPPED = frozenset(
    {"__pycache__", "__pypackages__", "node_modules", "site-packages", "build", "dist", "venv"}
)

Problem = tuple[str, str]  # (path, what is wrong with it), reported as FL000


def shown(path: str) -> str:
    """The path as users see it: relative below the working directory, absolute elsewhere."""
    full = os.path.abspath(path)
    relative = os.path.relpath(full)
    return full if relative.startswith("..") else relative


def discover(
    paths: Sequence[str], settings: Settings, force_exclude: bool = False
) -> tuple[list[str], list[Problem]]:
    """The files below the paths, each once, and the folders that could not be listed.

    A file that is named outright is read whatever it is called and wherever it lies, unless `force_exclude`.
    """
    files: dict[str, None] = {}
    problems: list[Problem] = []
    for path in paths:
        if force_exclude and excluded(path, settings):
            continue
        if os.path.isdir(path):
            files.update((shown(found), None) for found in _below(path, settings, problems))
        else:
            files[shown(path)] = None
    return list(files), problems


def below(folder: str, settings: Settings) -> Iterator[str]:
    """The files below a folder, as they are found: for those who may not want them all."""
    if os.path.isdir(folder):
        yield from map(shown, _below(folder, settings, []))


def excluded(path: str, settings: Settings) -> bool:
    """Whether the walk would have left this path out."""
    parts = os.path.relpath(os.path.abspath(path), settings.root).split(os.sep)
    return any(_skipped(part) for part in parts if part not in {".", ".."}) or _excluded(
        path, settings
    )


def _skipped(name: str) -> bool:
    return name in SKIPPED or name.startswith(".") or name.endswith(".egg-info")


def _excluded(path: str, settings: Settings) -> bool:
    if not settings.exclude:
        return False
    return any(matches(path, pattern, settings.root) for pattern in settings.exclude)


def _below(top: str, settings: Settings, problems: list[Problem]) -> Iterator[str]:
    # a stack, not recursion: folders can be nested deeper than Python's own stack
    stack = [top]
    while stack:
        folder = stack.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            problems.append(
                (shown(folder), f"the folder cannot be listed: {error.strerror or error}")
            )
            continue
        if folder != top and any(entry.name == "pyvenv.cfg" for entry in entries):
            continue  # a virtual environment under another name
        folders = []
        if any(entry.name.startswith(TEMPORARY) for entry in entries):
            sweep(folder)  # what a killed --fix has left
        for entry in entries:
            if _skipped(entry.name) or _excluded(entry.path, settings):
                continue
            # links to folders are not followed: that is what makes loops harmless
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.name.endswith(SUFFIXES) and not _is_folder(entry):
                yield entry.path
        stack += reversed(folders)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link that leads nowhere is told as a file that cannot be read
