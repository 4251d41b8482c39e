"""What a caller may have read, how much of it, and for how long. Every refusal is a `UsageError` in plain words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fallline.errors import UsageError

__all__ = ["LARGEST", "MOST_FILES", "MOST_FINDINGS", "SECONDS", "Root", "bounded", "too_large"]

LARGEST = 1_000_000  # bytes of one text or file
MOST_FILES = 2_000
MOST_FINDINGS = 100  # more would fill a caller's context with the same few mistakes
SECONDS = 60.0


def bounded(text: str, what: str) -> str:
    """The text, if it is text and not too long."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{what} is not text: it contains lone surrogates") from None
    if size > LARGEST:
        raise UsageError(
            f"{what} is larger than {LARGEST // 1_000_000} MB: send only the part with the training loop"
        )
    if "\0" in text:
        raise UsageError(f"{what} is not text: it contains NUL characters")
    return text


class Root:
    """The folder below which files may be read, however a path is written and wherever links lead."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def holds(self, path: str | Path) -> bool:
        """Whether the path lies below the root once all links are followed."""
        try:
            return Path(path).resolve().is_relative_to(self.folder)
        except (OSError, RuntimeError, ValueError):  # a loop of links; a name no system has
            return False

    def find(self, given: str) -> Path:
        """The file or folder that a caller names."""
        if not given or "\0" in given:
            raise UsageError(
                "the path is empty or holds NUL characters: name a file below the root"
            )
        path = self.folder / given
        # asked before whether it exists: what lies outside is nobody's business
        if not self.holds(path):
            raise UsageError(
                f"{_short(given)} leads out of the root {self.folder}: only what lies below it is read. "
                "`fallline mcp --root DIR` chooses a different root"
            )
        try:
            if not path.exists():
                raise UsageError(f"there is no {_short(given)} below {self.folder}")
        except OSError as error:
            raise UsageError(f"{_short(given)} cannot be opened: {error.strerror}") from None
        return path.resolve()

    def shown(self, path: str | Path) -> str:
        """The path as callers see it: relative to the root."""
        return Path(path).resolve().relative_to(self.folder).as_posix()

    def sifted(self, files: Iterable[str]) -> tuple[list[str], list[str]]:
        """The files that may be read, and the others with the reason."""
        kept: list[str] = []
        left_out: list[str] = []
        for file in files:
            reason = self._reason(Path(file))
            if reason:
                left_out.append(f"{file}: {reason}")
            else:
                kept.append(file)
        return kept, left_out

    def _reason(self, path: Path) -> str:
        if not self.holds(path):
            return "it is a link that leads out of the root"
        try:
            return too_large(path)
        except OSError as error:
            return f"it cannot be opened ({error.strerror})"


def too_large(path: Path) -> str:
    """Why a file is not read; empty when it is. Raises OSError."""
    if path.stat().st_size > LARGEST:
        return f"it is larger than {LARGEST // 1_000_000} MB"
    return ""


def _short(given: str) -> str:
    return repr(given if len(given) <= 200 else given[:200] + "…")
