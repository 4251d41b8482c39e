"""What all instruments share: what a measurement is, and a sign of life while it is made."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol, TextIO

__all__ = ["Measurement", "Progress", "human_bytes", "human_seconds"]

_PATIENCE = 2.0  # seconds that may pass without a word


class Measurement(Protocol):
    """What an instrument answers with."""

    @property
    def partial(self) -> bool:
        """Whether it was ended before it had measured all it wanted."""

    def to_json(self) -> dict[str, Any]:
        """Everything that was measured."""

    def text(self) -> str:
        """The same for a person to read: the verdict first."""


class Progress:
    """A line on the error stream for what takes over two seconds: rewritten on a terminal, now and then a new one elsewhere.

    Elsewhere every line is whole, because the script that is measured writes there too.
    """

    def __init__(self, what: str, total: int | None = None, stream: TextIO | None = None) -> None:
        self.what = what
        self.total = total
        self.stream = stream if stream is not None else sys.stderr
        self.terminal = self.stream.isatty()
        self._begun = time.monotonic()
        self._next = self._begun + _PATIENCE
        self._drawn = False

    def advance(self, done: int, note: str = "") -> None:
        """`done` of `total` are done; `note` says what comes now."""
        now = time.monotonic()
        if now < self._next:
            return
        passed = now - self._begun
        self._next = now + (0.1 if self.terminal else passed)  # a log needs fewer and fewer
        of = f" of {self.total}" if self.total is not None else ""
        after = f", {note}" if note else ""
        line = f"fallline: {self.what} {done}{of}{after} ({passed:.0f} s)"
        self.stream.write(f"\r\x1b[K{line}" if self.terminal else f"{line}\n")
        self._drawn = self.terminal
        self.stream.flush()

    def close(self) -> None:
        """The line goes away."""
        if self._drawn:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
            self._drawn = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def human_bytes(size: float) -> str:
    """`512 B`, `3.0 MiB`: the unit in which it is a small number."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"


def human_seconds(seconds: float) -> str:
    """`250 µs`, `3.2 ms`, `1.5 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
