"""What was found in a file, kept for as long as nothing that had a part in it changes.

One JSON file for one set of files checked together, because a function is read where its callers are. An entry holds
while these are the same: the file's content, the content of the other files that were looked into, the names next to
it (a new file can give an import a meaning), fallline itself, Python.
A cache that cannot be read or written costs time, never an answer: it is rebuilt, or done without.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fallline._version import __version__
from fallline.check.write import write_atomically
from fallline.finding import Finding
from fallline.reader import Reading
from fallline.reader.read import SECONDS_PER_FILE

__all__ = ["FOLDER", "Cache"]

FOLDER = ".fallline_cache"
_SETS = 16  # how many sets of files are remembered


class Cache:
    """Readings by file. Processes may share one: each write is whole, the last one wins, nothing else is lost."""

    def __init__(self, folder: str, root: str, among: Iterable[str]) -> None:
        """`among` are all the files of the check."""
        self.folder = folder
        self.root = root
        together = _hash(os.fsencode("\0".join(sorted(os.path.abspath(path) for path in among))))
        self.file = os.path.join(folder, f"readings-{together[:12]}.json")
        self._tool = _tool_signature()
        self._entries = self._load()
        self._fresh: dict[str, Any] = {}
        self._digests: dict[str, str | None] = {}
        self._names: dict[str, str] = {}

    def get(self, path: str) -> Reading | None:
        """The reading of this file, if nothing it depends on has changed."""
        entry = self._entries.get(os.path.abspath(path))
        if entry is None or entry["key"] != self._key(path) or entry["shown"] != path:
            return None
        if any(self._digest(other) != digest for other, digest in entry["touched"].items()):
            return None
        return Reading(path, [_thaw(f) for f in entry["findings"]], frozenset(entry["touched"]))

    def put(self, reading: Reading) -> None:
        """Remember a reading, unless it was cut short by the clock, by a mistake of our own, or its file is gone."""
        key = self._key(reading.path)
        if key is not None and not reading.failures and reading.seconds < SECONDS_PER_FILE / 2:
            self._fresh[os.path.abspath(reading.path)] = {
                "key": key,
                "shown": reading.path,
                "touched": {path: self._digest(path) for path in sorted(reading.touched)},
                "findings": [_frozen(f) for f in reading.findings],
            }

    def save(self) -> None:
        """Write what is new; silently not at all where the folder cannot be written."""
        if not self._fresh:
            return
        # another process may have written meanwhile
        entries = {**self._load(), **self._fresh}
        try:
            body = json.dumps(entries, separators=(",", ":"))
            self._make_folder()
            write_atomically(self.file, f"{self._tool} {_hash(body.encode())}\n{body}".encode())
            self._forget_oldest()
        except (OSError, TypeError, ValueError):
            return

    def _forget_oldest(self) -> None:
        files = [entry for entry in os.scandir(self.folder) if entry.name.startswith("readings-")]
        for entry in sorted(files, key=lambda entry: entry.stat().st_mtime)[:-_SETS]:
            os.unlink(entry.path)

    def _load(self) -> dict[str, Any]:
        try:
            with open(self.file, encoding="utf-8") as handle:
                head, _, body = handle.read().partition("\n")
            if head != f"{self._tool} {_hash(body.encode())}":
                return {}
            entries: dict[str, Any] = json.loads(body)
            return entries
        except (OSError, ValueError):
            return {}

    def _make_folder(self) -> None:
        if not os.path.isdir(self.folder):
            os.makedirs(self.folder, exist_ok=True)
            # the folder takes itself out of version control, wherever it was put
            write_atomically(os.path.join(self.folder, ".gitignore"), b"*\n")

    def _key(self, path: str) -> str | None:
        digest = self._digest(path)
        return (
            None
            if digest is None
            else f"{digest}-{self._neighbours(os.path.dirname(os.path.abspath(path)))}"
        )

    def _digest(self, path: str) -> str | None:
        if path not in self._digests:
            try:
                with open(path, "rb") as handle:
                    self._digests[path] = _hash(handle.read())
            except OSError:
                self._digests[path] = None
        return self._digests[path]

    def _neighbours(self, folder: str) -> str:
        """The names that an import in this folder can mean: next to it, and up to the project's root."""
        if folder not in self._names:
            try:
                names = sorted(n for n in os.listdir(folder) if n.endswith(".py") or "." not in n)
            except OSError:
                names = []
            up = os.path.dirname(folder)
            above = self._neighbours(up) if folder != self.root and up != folder else ""
            self._names[folder] = _hash(os.fsencode("\0".join([above, *names])))
        return self._names[folder]


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _frozen(finding: Finding) -> dict[str, Any]:
    return {**finding.as_dict(), "function": finding.at.function}


def _thaw(data: dict[str, Any]) -> Finding:
    finding = Finding.from_dict(data)
    finding.at = replace(finding.at, function=data["function"])
    return finding


def _tool_signature() -> str:
    """Which fallline on which Python: its version, and the state of its own files for those who change it."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = []
    for folder, folders, names in os.walk(home):
        folders[:] = (
            [f for f in folders if f in {"rules", "reader", "syntax"}]
            if folder == home
            else folders
        )
        files += [os.path.join(folder, name) for name in names if name.endswith(".py")]
    states = [
        (os.path.relpath(f, home), os.stat(f).st_mtime_ns, os.stat(f).st_size)
        for f in sorted(files)
    ]
    return f"fallline-{__version__}-{_hash(repr((states, sys.version_info[:3])).encode())}"
