"""Which thread of the program is followed: the one that trains first.

Calls are one sequence. Threads that train at the same time, or that act and evaluate beside the one that trains, would
be mixed into it and look like mistakes; so their calls are not published. Threads that torch starts for its backward are the
trainer's own, and where the trainer has ended, the next one takes its place.
"""

from __future__ import annotations

import sys
import threading
from threading import get_ident

__all__ = ["TrainingThread"]


class TrainingThread:
    """`ident` is the thread that trains; None until the first backward, when all are followed."""

    def __init__(self) -> None:
        self.ident: int | None = None
        self._warned = False

    def forget(self) -> None:
        """Nobody trains yet: a new run, or a forked process."""
        self.ident, self._warned = None, False

    def keeps_out(self, *, backward: bool = False) -> bool:
        """Whether a call from this thread, which is not the one that trains, is ignored. With a backward it may take over."""
        if self.ident is None:
            if backward:
                self.ident = get_ident()
            return False
        here, alive = get_ident(), {t.ident for t in threading.enumerate()}
        if here not in alive:
            return False  # torch's own
        if backward and self.ident not in alive:
            self.ident = here
            return False
        if backward and not self._warned:
            self._warned = True
            line = "fallline: several threads train at the same time; only the one that began is watched"
            print(line, file=sys.stderr)
        return True
