"""What others wrote: files, JSON and text that may be anything. Whoever reads or shows such things does it through here."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = (
    False  # `check` of a file that cannot matter needs this module and shall not pay for typing
)
if TYPE_CHECKING:
    from typing import Any

__all__ = ["json_text", "parse_json", "printable", "read_file"]

# Characters that move the cursor, change colours, reorder what is beside them or end a line: C0 and C1 controls, line and
# paragraph separators, marks of writing direction, and halves of surrogate pairs.
_HIDDEN = frozenset(
    map(
        chr,
        (
            *range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F),
            *range(0x2066, 0x206A), 0xFEFF, *range(0xD800, 0xE000), *range(0xFFF9, 0xFFFC),
        ),
    )
)  # fmt: skip


def printable(text: str, keep: str = "\n\t") -> str:
    """The text with every character that a terminal or a page would act on written as an escape (`\\x1b`), those in `keep` apart."""
    if text.isprintable():  # nearly always, and quick
        return text
    return "".join(
        c if c in keep or c not in _HIDDEN else c.encode("unicode_escape").decode() for c in text
    )


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file of at most this many bytes. OSError says why not; a device or a pipe is never opened for long."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{os.fspath(path)} is not a regular file")
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"{os.fspath(path)} is larger than {most:,} bytes")
    return data


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON with the same meaning, in which no character acts on a terminal: `json` leaves those above 0x7e as they are."""
    import json  # only for those who write JSON

    made = json.dumps(value, indent=indent, ensure_ascii=False)
    if made.isascii() and "\x7f" not in made:
        return made
    return "".join(f"\\u{ord(c):04x}" if c in _HIDDEN and c != "\n" else c for c in made)


def parse_json(text: str | bytes) -> Any:
    """`json.loads`, whose every failure is a ValueError with a sentence."""
    import json  # only for those who read JSON

    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except MemoryError:
        raise ValueError("it does not fit into memory") from None
