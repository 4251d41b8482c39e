"""Checkpoints on disk: names, files that are whole or not there, left-overs of saves that were killed, and damage that is noticed."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import time
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from fallline.engine.staging import apart
from fallline.errors import EngineError

__all__ = [
    "MANIFEST",
    "NAME",
    "check_file",
    "check_files",
    "checkpoints",
    "checksums",
    "clear_left_overs",
    "commit",
    "in_words",
    "prepare",
    "publish",
    "read",
    "remove",
    "sync_folder",
    "temporary_for",
    "there",
    "write_through",
]

NAME = re.compile(r"step-(\d+)(\.pt)?")
MANIFEST = "manifest.json"
_LEFT_OVER = re.compile(
    r"\.step-\d+(?:\.pt)?(?:\.(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{8})?(?:\.replaced)?\.tmp"
)
_DAY = 24 * 3600.0


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), p) for p in folder.iterdir() if (match := NAME.fullmatch(p.name))]
    return [p for _, p in sorted(found)]


def there(folder: Path) -> str:
    names = [p.name for p in checkpoints(folder)]
    return f"are {', '.join(names)}" if names else "are no checkpoints"


def temporary_for(path: Path) -> Path:
    """A name that no other save has: two processes may save into one folder."""
    return path.parent / f".{path.name}.{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp"


def clear_left_overs(folder: Path) -> None:
    """What a save that was killed has left behind. Whatever another process may still be writing is left alone."""
    for entry in folder.iterdir():
        match = _LEFT_OVER.fullmatch(entry.name)
        if match is not None and not _in_use(entry, match["host"], match["pid"]):
            remove(entry)


def _in_use(entry: Path, host: str | None, pid: str | None) -> bool:
    if host is None or pid is None:
        return False
    if host != _host():  # another machine's: only its age says anything
        try:
            return time.time() - entry.stat().st_mtime < _DAY
        except FileNotFoundError:
            return False
    if int(pid) == os.getpid():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.]", "", platform.node()) or "here"


def remove(path: Path) -> None:
    """Remove a file or a folder; somebody else may be quicker."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # a folder that is not one, or that may only be read
            path.unlink(missing_ok=True)


@contextmanager
def publish(path: Path) -> Iterator[Path]:
    """Write into the name that is given; when that is done, it becomes `path`. On any failure nothing is left, and the words say why."""
    temporary = temporary_for(path)
    with in_words(path, temporary):
        prepare(path)
        yield temporary
        commit(temporary, path)


def prepare(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_left_overs(path.parent)


def commit(temporary: Path, path: Path) -> None:
    """Give a complete file or folder its name: whoever looks sees the old one or the new one."""
    sync_folder(temporary if temporary.is_dir() else path.parent)
    replaced = path.parent / f"{temporary.name[:-4]}.replaced.tmp" if path.is_dir() else None
    if replaced is not None:
        path.replace(replaced)  # two renames, nothing slow between them
    temporary.replace(path)
    sync_folder(path.parent)
    if replaced is not None:
        remove(replaced)


@contextmanager
def in_words(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Whatever fails inside leaves no file behind, and becomes an error that says what it means."""
    try:
        yield
    except BaseException as error:
        if temporary is not None:
            remove(temporary)
        if isinstance(error, EngineError) or not isinstance(error, Exception):
            raise
        raise EngineError(
            f"cannot write {path}: {_reason(error)}. The previous checkpoint is untouched"
        ) from error


def _reason(error: BaseException) -> str:
    """The operating system's words, where there are some: torch hides a full disk behind its own error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    text = str(error).partition("\n")[0]
    if "PytorchStreamWriter failed" in text or "enforce fail" in text:
        text += " (usually a full disk)"
    return f"{type(error).__name__}: {text}"


def write_through(path: Path, saved: dict[str, Any]) -> None:
    """Write a file and wait until the disk has it."""
    # By name: an open file would be called in Python for every block
    torch.save(saved, path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read(path: Path) -> dict[str, Any]:
    """The content of one file, after its checksums were compared: a flipped bit must not become a weight."""
    try:
        check_file(path)
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(saved, dict) or saved.get("format") != 1:
            raise EngineError(f"{path} was not written by save_checkpoint")
        apart(saved)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(
            f"{path} cannot be read ({type(error).__name__}: {str(error).partition(chr(10))[0]}); there {there(path.parent)}"
        ) from error
    return saved


def check_file(path: Path) -> None:
    """torch writes a CRC-32 of every tensor into the file, and does not look at it when it loads."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, zlib.error) as error:
        raise _damaged(path) from error
    if damaged is not None:
        raise _damaged(path)


def checksums(files: Iterable[Path]) -> dict[str, list[int]]:
    """Size and CRC-32 of each file, by its name."""
    return {file.name: _checksum(file) for file in files}


def check_files(folder: Path, share: int = 0, of: int = 1) -> None:
    """Compare a folder's files with its manifest; this rank takes every `of`-th one."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        return  # written by an older version
    try:
        known: dict[str, list[int]] = json.loads(manifest.read_text(encoding="utf-8"))
        for name in sorted(known)[share::of]:
            if not (folder / name).exists() or _checksum(folder / name) != known[name]:
                raise _damaged(folder / name)
    except (ValueError, AttributeError, UnicodeDecodeError) as error:
        raise _damaged(manifest) from error


def _checksum(file: Path) -> list[int]:
    size, crc = 0, 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 24):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]


def _damaged(path: Path) -> EngineError:
    folder = path.parent.parent if NAME.fullmatch(path.parent.name) else path.parent
    return EngineError(
        f"{path} is damaged: its checksum does not match, so it cannot be read. Load another checkpoint; there {there(folder)}"
    )
