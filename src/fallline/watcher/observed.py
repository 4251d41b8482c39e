"""What was seen and becomes a finding when the run is judged: a NaN and its origin, parameters that nobody steps."""

from __future__ import annotations

from typing import Any

from fallline.location import Location
from fallline.watcher.recording import Recording

__all__ = ["Observed"]


class Observed:
    """Of one rank; written down as soon as it is known."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.all: list[dict[str, Any]] = []

    @property
    def codes(self) -> set[str]:
        return {seen["code"] for seen in self.all}

    def add(self, code: str, at: Location, facts: dict[str, Any]) -> None:
        seen = {
            "code": code,
            "path": at.path,
            "line": at.line,
            "column": at.column,
            "function": at.function,
            "rank": self._recording.rank,
        }
        self.all.append(seen | facts)
        self._recording.open().describe("observed", self.all)
