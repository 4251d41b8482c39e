"""What came with a question (code, a run, a log), already read, so that the parts that answer need not know the reader."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fallline.finding import Finding

__all__ = ["Gathered"]


@dataclass(slots=True)
class Gathered:
    """What the evidence shows: findings, the code with the reader's own fixes, and what those leave."""

    findings: list[Finding]
    corrected: str | None = None
    diff: str = ""  # the lines that the fixes change
    remaining: list[Finding] = field(default_factory=list)
    read: dict[str, str] = field(default_factory=dict)  # the code that was read, by its name
    numbers: dict[str, str] = field(
        default_factory=dict
    )  # what a watched run measured, by its name
    cut: bool = False  # an excerpt without a whole update: that nothing is found in it says little

    @property
    def serious(self) -> list[Finding]:
        """What calls for a change, worst first."""
        return sorted(
            (f for f in self.findings if f.severity != "info"), key=lambda f: f.severity.rank
        )

    @property
    def files(self) -> dict[str, str]:
        """The whole files among what was read: the reader saw all of them, so what it did not find is not guessed at."""
        return {path: text for path, text in self.read.items() if path[:1] != "<"}

    @property
    def name(self) -> str:
        """What the code that was read is called in a sentence."""
        names = [Path(path).name for path in self.files]
        return ", ".join(names) or "this code"

    @property
    def repaired(self) -> set[str]:
        """The rules whose findings the changes in `diff` remove."""
        left = {f.code for f in self.remaining}
        return {f.code for f in self.serious if f.code not in left} if self.diff else set()

    def add(self, other: Gathered) -> None:
        self.findings += other.findings
        self.read |= other.read
        self.numbers |= other.numbers
        self.cut = self.cut or other.cut
        if self.corrected is None:
            self.corrected, self.diff, self.remaining = other.corrected, other.diff, other.remaining
