"""The exceptions a user can meet.

FalllineError
├── UsageError          the command line or the configuration is wrong (exit status 2)
├── EngineError         the engine was used in a way that would train something else
└── RunError            a run folder cannot be read or written
"""

from __future__ import annotations

__all__ = ["EngineError", "FalllineError", "RunError", "UsageError"]


class FalllineError(Exception):
    """Something the user can act on; its text says what happened and what to do."""


class UsageError(FalllineError, ValueError):
    """The command line or the configuration is wrong."""


class EngineError(FalllineError, RuntimeError):
    """The engine was used in a way that would train something else than was meant."""


class RunError(FalllineError, OSError):
    """A run folder cannot be read or written."""
