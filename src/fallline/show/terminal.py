"""Colour and progress, only where a person looks at a terminal."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["SEVERITY_STYLE", "Paint", "Progress", "counted", "wants_colour"]

_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "cyan": "36",
}
SEVERITY_STYLE = {"error": "bold red", "warning": "bold yellow", "info": "bold blue"}


def wants_colour(choice: str, stream: TextIO) -> bool:
    """`always`, `never`, or what the terminal and the environment say (NO_COLOR, FORCE_COLOR)."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def counted(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class Paint:
    """Styles text, or leaves it alone."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def __call__(self, text: str, style: str) -> str:
        if not self.on or not text:
            return text
        return f"\x1b[{';'.join(_CODES[word] for word in style.split())}m{text}\x1b[0m"


class Progress:
    """A line on the error stream for work that takes longer than a second; nothing when nobody watches."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total = total
        self.done = 0
        self.stream = stream if stream is not None else sys.stderr
        self.watched = self.stream.isatty()
        self._next = time.monotonic() + 1.0
        self._drawn = False

    def tick(self) -> None:
        """One more file is done."""
        self.done += 1
        if self.watched and time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.1
            self._drawn = True
            filled = 30 * self.done // max(self.total, 1)
            bar = "━" * filled + " " * (30 - filled)
            self.stream.write(f"\rreading {bar} {self.done}/{self.total} files")
            self.stream.flush()

    def close(self) -> None:
        """Take the line away."""
        if self._drawn:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
