"""What a check of a custom autograd Function answers with: every case, and for those that fail what to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Case", "FunctionReport"]


@dataclass(frozen=True)
class Case:
    """`passed` is None where it could not be asked here, or was left out."""

    name: str
    passed: bool | None
    says: str = ""
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"case": self.name, "passed": self.passed, "says": self.says, "fix": self.fix}


@dataclass
class FunctionReport:
    """True when no case fails."""

    name: str
    inputs: str
    cases: list[Case] = field(default_factory=list)
    partial: bool = False

    @property
    def passed(self) -> bool:
        return not self.failures and not self.partial

    @property
    def failures(self) -> list[Case]:
        return [c for c in self.cases if c.passed is False]

    def __bool__(self) -> bool:
        return self.passed

    def to_json(self) -> dict[str, Any]:
        return {
            "function": self.name,
            "inputs": self.inputs,
            "torch": torch.__version__,
            "passed": self.passed,
            "cases": [c.to_json() for c in self.cases],
            "partial": self.partial,
        }

    def text(self) -> str:
        failed = self.failures
        asked = [c for c in self.cases if c.passed is not None]
        head = f"{self.name}({self.inputs}): "
        head += (
            f"{len(failed)} of {len(asked)} cases fail"
            if failed
            else f"all {len(asked)} cases pass"
        )
        lines = [head, ""]
        if self.partial:
            lines = ["stopped before every case was asked", "", *lines]
        for case in self.cases:
            mark = {True: "ok  ", False: "FAIL", None: "--  "}[case.passed]
            lines.append(f"{mark} {case.name}{': ' + case.says if case.says else ''}")
            if case.passed is False and case.fix:
                lines.append(f"     {case.fix}")
        return "\n".join(lines) + "\n"
