"""The folder of the cache: used only where it is provably ours, and only our own files in it are read, written or deleted.

A project's settings name the folder, and a project can be anybody's: a folder without our mark is left alone, and so is one
that a link leads to from inside the project.
"""

from __future__ import annotations

import os
import re

from fallline.files import sweep, write_atomically

__all__ = ["CacheFolder"]

_SETS = 16  # how many sets of files are remembered
_MARK = (
    "CACHEDIR.TAG"  # a convention that backup programs know as well: https://bford.info/cachedir/
)
_MARKED = b"""\
Signature: 8a477f597d28d172789f06886806bc55
# This folder is the cache of `fallline check`. It can be deleted at any time.
"""
_SET = re.compile(r"readings-[0-9a-f]{12}\.json")


class CacheFolder:
    """`usable` says whether there is one; without it nothing is read and nothing is written."""

    def __init__(self, path: str, root: str) -> None:
        self.path = path
        self.usable = self._is_ours(root)

    def file(self, name: str) -> str:
        """The path of one set, by its hash."""
        return os.path.join(self.path, f"readings-{name}.json")

    def read(self, file: str) -> bytes | None:
        """The content of a set; None where there is none, or where it is not a file of ours."""
        if not self.usable or os.path.islink(file) or not os.path.isfile(file):
            return None
        try:
            with open(file, "rb") as handle:
                return handle.read()
        except OSError:
            return None

    def newest(self) -> str | None:
        """The set that was written last."""
        sets = self._sets() if self.usable else []
        return sets[-1] if sets else None

    def write(self, file: str, data: bytes) -> None:
        """Write one set, and forget the oldest. A link in its place is replaced, not followed."""
        if not self.usable:
            return
        self._make()
        write_atomically(file, data, follow=False)
        for old in self._sets()[:-_SETS]:
            os.unlink(old)

    def _is_ours(self, root: str) -> bool:
        if _leads_out(self.path, root):
            return False
        try:
            if not os.path.lexists(self.path):
                return True  # `write` makes it
            if not os.path.isdir(self.path):
                return False
            sweep(self.path)
            return self._marked() or self._holds_nothing_else()
        except OSError:
            return False

    def _marked(self) -> bool:
        mark = os.path.join(self.path, _MARK)
        if os.path.islink(mark) or not os.path.isfile(mark):
            return False
        with open(mark, "rb") as handle:
            return handle.read(len(_MARKED) + 1) == _MARKED

    def _holds_nothing_else(self) -> bool:
        """An empty folder, or a cache that was made before there was a mark."""
        return all(
            entry.is_file(follow_symlinks=False)
            and (entry.name == ".gitignore" or _SET.fullmatch(entry.name) is not None)
            for entry in os.scandir(self.path)
        )

    def _make(self) -> None:
        os.makedirs(self.path, exist_ok=True)
        if not self._marked():
            # the folder takes itself out of version control, wherever it was put
            for name, text in ((".gitignore", b"*\n"), (_MARK, _MARKED)):
                write_atomically(os.path.join(self.path, name), text, follow=False)

    def _sets(self) -> list[str]:
        """Our files, oldest first."""
        try:
            with os.scandir(self.path) as listing:
                found = [
                    (entry.stat(follow_symlinks=False).st_mtime, entry.path)
                    for entry in listing
                    if _SET.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
                ]
        except OSError:
            return []
        return [path for _, path in sorted(found)]


def _leads_out(path: str, root: str) -> bool:
    """Whether a link inside the project leads to somewhere outside of it."""
    inside = _below(os.path.abspath(path), os.path.abspath(root))
    return inside and not _below(os.path.realpath(path), os.path.realpath(root))


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)
