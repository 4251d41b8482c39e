"""Files are written whole or not at all, and what a killed write leaves behind is cleared away."""

from __future__ import annotations

import os
import stat
import time
from functools import cache

__all__ = ["TEMPORARY", "sweep", "temporary_name", "write_atomically"]

TEMPORARY = ".fallline-"  # .fallline-HOST-PID-RANDOM.tmp
_DAY = 86_400.0


def write_atomically(path: str, data: bytes, *, follow: bool = True) -> None:
    """Replace the file's content; a crash at any moment leaves the old or the new content, never half of one.

    The mode is kept, and a link stays a link: what it leads to is replaced (`follow=False` replaces the link itself).
    What is not a file (`/dev/stdout`, a named pipe) is written to: replacing it would take it away from everybody.
    """
    target = os.path.realpath(path) if follow else os.path.abspath(path)
    if follow and os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        with open(path, "wb") as stream:
            stream.write(data)
        return
    folder = os.path.dirname(target)
    sweep(folder)
    temporary = os.path.join(folder, temporary_name())
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def temporary_name() -> str:
    """A name that says who writes it, so that it is known as ours when nobody does any more."""
    return f"{TEMPORARY}{_host()}-{os.getpid()}-{os.urandom(8).hex()}.tmp"


@cache
def sweep(folder: str) -> None:
    """Delete what writes that were killed have left in this folder. Once for each folder: it costs a listing."""
    try:
        with os.scandir(folder) as listing:
            left = [e.path for e in listing if e.name.startswith(TEMPORARY) and _abandoned(e)]
        for path in left:
            os.unlink(path)
    except OSError:
        return  # a folder that cannot be listed or changed holds nothing that we can clear


def _abandoned(entry: os.DirEntry[str]) -> bool:
    """A temporary file of ours whose writer is gone: by its name, its owner, and that process."""
    host, _, rest = entry.name.removeprefix(TEMPORARY).removesuffix(".tmp").partition("-")
    pid, _, random = rest.partition("-")
    named = entry.name.endswith(".tmp") and pid.isascii() and pid.isdigit() and len(pid) < 10
    if not named or not _is_hex(host, 8) or not _is_hex(random, 16):
        return False
    if not entry.is_file(follow_symlinks=False):
        return False
    known = entry.stat(follow_symlinks=False)
    if hasattr(os, "getuid") and known.st_uid != os.getuid():
        return False
    if host == _host() and os.name == "posix":
        return not _alive(int(pid))
    return time.time() - known.st_mtime > _DAY  # of another machine: no write takes a day


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and all(c in "0123456789abcdef" for c in text)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # somebody else's process: it is there
    return True


@cache
def _host() -> str:
    """Eight digits for this machine: a process id means nothing on a different one."""
    from zlib import crc32  # only for those who write

    name = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    return f"{crc32(name.encode(errors='replace')):08x}"


def _mode(target: str) -> int:
    try:
        there = os.stat(target, follow_symlinks=False).st_mode
        if stat.S_ISREG(there):
            return stat.S_IMODE(there)
    except FileNotFoundError:
        pass
    # what open() would have given a new file
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
