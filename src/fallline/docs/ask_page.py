"""The tables of docs/ask.md: what the sources ask for and where it is covered, and the scenarios. The rest of the page is written by hand."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from fallline.triage.evaluate import scenarios
from fallline.triage.playbook import playbooks

__all__ = ["Item", "items", "page"]

COVERAGE = Path("evals/coverage.toml")


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that the sources ask for, where a playbook has it, and which scenarios ask for it."""

    kind: str
    number: str
    says: str
    case: str
    entries: tuple[str, ...]
    scenarios: tuple[str, ...]


def items(path: Path = COVERAGE) -> list[Item]:
    """The inventory, in its own order."""
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        Item(**{**row, "entries": tuple(row["entries"]), "scenarios": tuple(row["scenarios"])})
        for row in raw["item"]
    ]


def page(text: str) -> str:
    """The page with its tables made again, between the comments that mark them."""
    for name, table in (("coverage", _coverage()), ("scenarios", _scenarios())):
        mark, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(mark)
        text = before + mark + table + end + rest.partition(end)[2]
    return text


def _coverage() -> str:
    homes = {case.id: book.specialist for book in playbooks() for case in book.cases}
    rows = [
        f"| {_name(i)} | {i.says} | [{i.case}](specialists/{homes[i.case]}.md) | {', '.join(i.scenarios)} |"
        for i in items()
    ]
    return "\n".join(["| item | in short | case | asked by |", "|---|---|---|---|", *rows, ""])


def _name(item: Item) -> str:
    return item.kind if item.kind == "topic" else f"{item.kind} {item.number}"


def _scenarios() -> str:
    rows = [
        f"| {s.id} | {s.source or 'ours'} | {', '.join(s.routes) or 'nobody'} |"
        for s in scenarios()
    ]
    return "\n".join(["| scenario | source | who answers |", "|---|---|---|", *rows, ""])
