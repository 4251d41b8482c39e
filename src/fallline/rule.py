"""A rule: one mistake, its document, its specimens, its check, its fix, its experiment.

A rule is one class in one file under `rules/<room>/`, named after its code and name
(`rules/gradients/fl101_clip_after_step.py`). Nothing else has to be touched to add one; `fallline.rules` finds it by its name.

A rule looks at one or more of:

    check(trace)          events of one execution, read or live      (seen by both)
    check_syntax(module)  resolved syntax                            (seen by the reader)
    check_series(run)     numbers over updates of a live run         (seen by the watcher)

`seen_by` and `fixable` are derived from what the class defines, never declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fallline.events import Event, Trace
from fallline.finding import Finding, Fix, Severity
from fallline.location import Location
from fallline.specialists import Specialist, specialist_of

if TYPE_CHECKING:
    from fallline.syntax import Module

__all__ = ["Rule", "defining"]


class Rule:
    """Base of all rules. Texts are plain Markdown; the first line of each is a sentence on its own."""

    code: ClassVar[str]
    name: ClassVar[str]  # reads well after "allow"
    severity: ClassVar[Severity]
    what: ClassVar[str]  # What it does
    why: ClassVar[str]  # Why is this bad?
    instead: ClassVar[str]  # Use instead
    fix_safety: ClassVar[str] = ""
    facts: ClassVar[tuple[str, ...]] = ()  # names of facts that back it
    references: ClassVar[tuple[str, ...]] = ()
    # One cause, one code: rules that say why this one was found too. Where one of them is reported, this one is not:
    # anywhere in the same execution, in the same function, or on the same line.
    yields_to: ClassVar[tuple[str, ...]] = ()
    yields_within: ClassVar[Literal["trace", "function", "line"]] = "trace"
    # Byte strings of which at least one must be in a file for this rule to matter; () means every file.
    tokens: ClassVar[tuple[bytes, ...]] = ()
    # Whole scripts. In a wrong one the reported line ends with `# FLxxx`. Scripts of rules that both doors
    # see must run on CPU with torch alone, in about a second; the agreement test runs them.
    wrong: ClassVar[tuple[str, ...]] = ()
    right: ClassVar[tuple[str, ...]] = ()

    def check(self, trace: Trace) -> Iterator[Finding]:
        """Mistakes in the events of one execution."""
        return iter(())

    def refutes(self, trace: Trace) -> Iterator[Location]:
        """Places where this execution shows that the mistake is not the program's, only that of some other setting.

        "Never" is said of the program, not of one way through it: findings at these places are dropped in all settings.
        """
        return iter(())

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """Mistakes in one file's resolved syntax."""
        return iter(())

    def check_series(self, run: Any) -> Iterator[Finding]:
        """Mistakes that show in the numbers of a live run."""
        return iter(())

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        """Edits that remove this finding, where they are certain."""
        return None

    @classmethod
    def _defines(cls, method: str) -> bool:
        return getattr(cls, method) is not getattr(Rule, method)

    @property
    def seen_by(self) -> str:
        """`reader`, `watcher` or `both`."""
        if self._defines("check"):
            return "both"
        reader, watcher = self._defines("check_syntax"), self._defines("check_series")
        if reader and watcher:
            return "both"
        return "watcher" if watcher else "reader"

    @property
    def fixable(self) -> bool:
        return self._defines("fix")

    @property
    def specialist(self) -> Specialist:
        return specialist_of(self.code)

    def finding(
        self,
        at: Event | Location,
        message: str,
        *,
        severity: Severity | None = None,
        related: dict[str, Location] | None = None,
        presuming: str | None = None,
        **evidence: Any,
    ) -> Finding:
        """A finding of this rule at an event or a place. Its message is one or more sentences.

        `presuming`: what it rests on that no code shows. It is never an error then.
        """
        place = at.at if isinstance(at, Event) else at
        if not message.endswith((".", "?")):
            message += "."
        grave = severity or self.severity
        if presuming:
            message += f" This presumes that {presuming}."
            evidence["presumes"] = presuming
            grave = Severity.WARNING if grave is Severity.ERROR else grave
        return Finding(
            self.code,
            self.name,
            grave,
            message,
            place,
            None,
            dict(evidence),
            dict(related or {}),
        )


@lru_cache(maxsize=16)
def defining(rules: tuple[Rule, ...], method: str) -> tuple[Rule, ...]:
    """Those of some rules that look in this way; asked for with every file and every execution."""
    return tuple(rule for rule in rules if rule._defines(method))
