"""What rules over the first batches share: `fallline measure data` writes down what it measured, the rule says what it means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules._observed import located, observed

__all__ = ["Measured"]


class Measured(Rule):
    """A rule whose mistake shows in the batches of a run."""

    def check_series(self, run: Any) -> Iterator[Finding]:
        for entry in observed(run, self.code):
            at, evidence = located(entry)
            yield self.finding(at, self.says(entry), severity=self.weighs(entry), **evidence)

    def says(self, entry: dict[str, Any]) -> str:
        """What this observation means, and what to write instead."""
        raise NotImplementedError

    def weighs(self, entry: dict[str, Any]) -> Severity | None:
        """Another severity than the rule's, where the observation is weaker."""
        return None
