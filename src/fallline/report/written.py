"""A report as a file."""

from __future__ import annotations

from pathlib import Path

from fallline.errors import RunError
from fallline.files import write_atomically

__all__ = ["write_text"]


def write_text(text: str, target: Path) -> Path:
    """Whole or not at all."""
    try:
        write_atomically(str(target), text.encode())
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror or error}") from error
    return target
