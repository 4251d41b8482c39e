"""The commit of a repository and which of its files are changed, read from its own files.

No program is started for it: a child process could be met by a script that waits for its own children.
"""

from __future__ import annotations

import hashlib
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fallline.untrusted import read_file

__all__ = ["Repository", "repository"]

_LARGEST = 4 << 20  # bytes of an index: forty thousand files
_ENTRY = 62  # bytes before the name


@dataclass
class Repository:
    """`files`: what the index holds, path → hash of the content; empty where its format is not known."""

    root: Path
    commit: str = ""
    branch: str = ""
    files: dict[str, str] = field(default_factory=dict)

    def changed(self, path: str, content: bytes) -> bool:
        """Whether this file, named from the root, is not what the index holds."""
        return bool(self.files) and self.files.get(path) != _blob(content)


def repository(path: Path) -> Repository | None:
    """The repository that this file or folder lies in."""
    for folder in (path, *path.parents):
        there = folder / ".git"
        if there.exists():
            with suppress(OSError, ValueError):
                return _read(folder, _git_folder(there))
            return None
    return None


def _git_folder(there: Path) -> Path:
    """A worktree or a submodule has a file that says where its folder is."""
    if there.is_dir():
        return there
    said = _text(there).removeprefix("gitdir:").strip()
    return (there.parent / said).resolve()


def _read(root: Path, git: Path) -> Repository:
    found = Repository(root)
    head = _text(git / "HEAD").strip()
    if head.startswith("ref:"):
        name = head.removeprefix("ref:").strip()
        found.branch = name.removeprefix("refs/heads/")
        found.commit = _resolved(git, name)
    else:
        found.commit = head
    with suppress(OSError, ValueError, struct.error, IndexError):
        found.files = _index(read_file(git / "index", _LARGEST))
    return found


def _resolved(git: Path, name: str) -> str:
    common = git
    with suppress(OSError):
        common = (git / _text(git / "commondir").strip()).resolve()
    for folder in (git, common):
        with suppress(OSError):
            return _text(folder / name).strip()
    with suppress(OSError):
        for line in _text(common / "packed-refs").splitlines():
            commit, _, ref = line.partition(" ")
            if ref == name:
                return commit
    return ""


def _text(path: Path) -> str:
    return read_file(path, 16 << 20).decode("utf-8", errors="replace")


def _index(data: bytes) -> dict[str, str]:
    """Versions 2 and 3 of the format; in 4 names are cut where they repeat, which is undone here too."""
    magic, version, count = struct.unpack(">4sII", data[:12])
    if magic != b"DIRC" or version not in (2, 3, 4):
        return {}
    found, at, before = {}, 12, b""
    for _ in range(count):
        begin = at
        digest, (flags,) = data[at + 40 : at + 60], struct.unpack(">H", data[at + 60 : at + 62])
        at += _ENTRY + (2 if flags & 0x4000 else 0)
        cut = 0
        if version == 4:
            cut, at = _number(data, at)
        end = data.index(b"\0", at)
        name = (before[: len(before) - cut] if version == 4 else b"") + data[at:end]
        found[name.decode("utf-8", errors="replace")] = digest.hex()
        at = end + 1 if version == 4 else begin + ((end - begin) // 8 + 1) * 8
        before = name
    return found


def _number(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    value = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = data[at]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at + 1


def _blob(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()  # fmt: skip
