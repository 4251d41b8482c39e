"""What keeps a failure of ours out of the program that trains."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from fallline.errors import FalllineError
from fallline.taps.tap import Call

__all__ = ["Fuse", "GuardStop"]

C = TypeVar("C", bound=Call)


class GuardStop(FalllineError, FloatingPointError):
    """A gradient is NaN or Inf and the run was started with --guard stop."""


class Fuse:
    """Runs our own part. When that fails, the fuse blows: stderr says so once, and training continues unwatched."""

    def __init__(self) -> None:
        self.off = False  # it has blown, or watching is over
        self.failed: str | None = None  # the traceback

    def safely(self, handler: Callable[..., Any], *args: Any) -> Any:
        """Call the handler. Only what stops the run on purpose gets out of here."""
        try:
            return handler(*args)
        except GuardStop:
            raise
        except Exception as error:
            self.fail(error)
            return None

    def guarded(self, handler: Callable[[C], Any]) -> Callable[[C], None]:
        """The handler of a tap, made safe."""

        def safely(call: C) -> None:
            if not self.off:
                try:
                    handler(call)
                except GuardStop:
                    raise
                except Exception as error:
                    self.fail(error)

        return safely

    def fail(self, error: Exception) -> None:
        """Our own part has failed."""
        self.off = True
        if self.failed is None:
            self.failed = "".join(traceback.format_exception(error))
            line = f"fallline: the watcher failed ({type(error).__name__}: {error}) and is off; training continues"
            print(line, file=sys.stderr)
            if os.environ.get("FALLLINE_DEBUG"):
                print(self.failed, file=sys.stderr)
