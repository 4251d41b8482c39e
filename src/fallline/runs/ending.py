"""How a run ended, in the words that are recorded with it."""

from __future__ import annotations

__all__ = ["INTERRUPTED", "ending", "how"]

INTERRUPTED = "interrupted"


def ending(error: BaseException | None) -> str:
    """By itself, or by this exception."""
    if error is None:
        return "finished"
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    said = f": {error}" if str(error) else ""
    return f"raised {type(error).__name__}{said}"


def how(status: str) -> str:
    """What kept the script from finishing, as the end of a sentence about it; "" where nothing did, or nobody knows."""
    kind, _, rest = status.partition(" ")
    if status == INTERRUPTED:
        return "was interrupted"
    if kind == "raised":
        return f"raised {rest.partition(':')[0]}"
    return f"ended with exit status {rest}" if kind == "exit" and rest != "0" else ""
