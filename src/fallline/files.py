"""Files are written whole or not at all."""

from __future__ import annotations

import os
import tempfile

__all__ = ["write_atomically"]


def write_atomically(path: str, data: bytes) -> None:
    """Replace the file's content; a crash at any moment leaves the old or the new content, never half of one.

    The mode is kept, and a link stays a link: what it leads to is replaced. What is no file (`/dev/stdout`, a named pipe)
    is written to: replacing it would take it away from everybody.
    """
    target = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        with open(path, "wb") as stream:
            stream.write(data)
        return
    handle, temporary = tempfile.mkstemp(
        prefix=".fallline-", suffix=".tmp", dir=os.path.dirname(target)
    )
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


def _mode(target: str) -> int:
    try:
        return os.stat(target).st_mode & 0o7777
    except FileNotFoundError:
        # what open() would have given a new file
        umask = os.umask(0)
        os.umask(umask)
        return 0o666 & ~umask
