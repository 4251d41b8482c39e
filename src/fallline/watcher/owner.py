"""Which thread of the program is watched: the one that trains first.

Events are one sequence. Threads that train at the same time, or that act and evaluate beside the one that trains, would
be mixed into it and look like mistakes; so their calls go past us. Threads that torch starts for its backward are the
trainer's own, and where the trainer has ended, the next one takes its place.
"""

from __future__ import annotations

import sys
import threading
from threading import get_ident

__all__ = ["Owner"]


class Owner:
    """`ident` is the watched thread; None until the first backward, when all are."""

    def __init__(self) -> None:
        self.ident: int | None = None
        self._told = False

    def keeps_out(self, *, backward: bool = False) -> bool:
        """Whether a call from this thread, which is not the owner, goes past us. With a backward it may take over."""
        if self.ident is None:
            return False
        here, alive = get_ident(), {t.ident for t in threading.enumerate()}
        if here not in alive:
            return False  # torch's own
        if backward and self.ident not in alive:
            self.ident = here
            return False
        if backward and not self._told:
            self._told = True
            line = "fallline: several threads train at the same time; only the one that began is watched"
            print(line, file=sys.stderr)
        return True
