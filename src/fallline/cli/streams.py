"""Standard streams as they really are: closed, full, or unable to hold every character."""

from __future__ import annotations

import codecs
import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["cannot_write", "give_up_writing", "open_closed", "write_plainly"]

_WRITING = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}

# what our own texts use, for a terminal or a file that cannot hold it; anything else is escaped
_PLAIN = {
    "→": "->",
    "◄": "<-",
    "·": "-",
    "–": "-",
    "─": "-",
    "━": "=",
    "│": "|",
    "┌": "+",
    "├": "+",
    "└": "+",
    "×": "x",
    "±": "+-",
    "²": "^2",
    "µ": "u",
    "“": '"',
    "”": '"',
    "’": "'",
    "…": "...",
}


def open_closed() -> None:
    """Give a stream that was closed before we started (`>&-`) somewhere to go.

    Python leaves None there, and the next file to be opened would take its number: what a library writes to standard
    error would end up in a run's database.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def write_plainly(stream: TextIO) -> None:
    """Characters that the stream cannot hold become plain ones; without this they end the command."""
    if hasattr(stream, "reconfigure"):
        codecs.register_error("fallline", _plain)
        stream.reconfigure(errors="fallline")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    escaped = (_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in text)
    return "".join(escaped), error.end


def cannot_write(error: BaseException) -> bool:
    """Whether this is a standard stream that takes nothing more, and no file of ours."""
    return isinstance(error, OSError) and error.filename is None and error.errno in _WRITING


def give_up_writing(error: OSError) -> int:
    """The exit status when nobody listens any more (`fallline check . | head`: 1) or the disk is full (2)."""
    from contextlib import suppress

    closed = error.errno == errno.EPIPE
    if not closed:
        with suppress(OSError):  # it may be standard error itself
            print(f"fallline: the output cannot be written: {error.strerror}", file=sys.stderr)
    for number in (1,) if closed else (1, 2):
        # what is still buffered goes nowhere, or the interpreter would complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    return 1 if closed else 2
