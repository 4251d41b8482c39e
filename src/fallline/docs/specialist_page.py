"""One specialist as Markdown: the cases of its playbook, and the rules it answers for."""

from __future__ import annotations

import re

from fallline.proof.record import recorded
from fallline.report.rule_page import page_name
from fallline.report.skills import case_page, title
from fallline.rules import all_rules, rule_by_code
from fallline.specialists import SPECIALISTS, Specialist
from fallline.triage.playbook import Playbook, playbooks

__all__ = ["pages"]

_CODE = re.compile(r"\bFL\d{3}\b")
_CITED = re.compile(r"\(((?:FL\d{3}|[a-z0-9]+(?:-[a-z0-9]+)+)(?:, [A-Za-z0-9-]+)*)\)")


def pages() -> dict[str, str]:
    """Every page by its name below docs/specialists, the index among them."""
    books = {book.specialist: book for book in playbooks()}
    found = {f"{s.name}.md": _page(s, books[s.name]) for s in SPECIALISTS}
    return {"README.md": _index(books), **found}


def _index(books: dict[str, Playbook]) -> str:
    rows = [
        f"| [{s.name}]({s.name}.md) | {s.about} | {', '.join(c.title for c in books[s.name].cases)} |"
        for s in SPECIALISTS
    ]
    return "\n".join(
        [
            "# Specialists",
            "",
            "`fallline ask` hands a question to one of ten specialists. Each works from a playbook: what is known, what to measure, which fix applies under which",
            "measured condition, what to avoid and why it tempts, how to verify. Every statement names the rule or the fact that backs it; `fallline prove` repeats the",
            "measurement. These pages are made from the playbooks by `make docs`.",
            "",
            "| specialist | about | cases |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _page(specialist: Specialist, book: Playbook) -> str:
    rules = [rule for rule in all_rules() if rule.specialist == specialist]
    parts = [
        f"# {title(specialist.name)}",
        f"{specialist.about[0].upper()}{specialist.about[1:]}.",
        *(_linked(_nested(case_page(case, 2).strip())) for case in book.cases),
        "## Rules",
        "\n".join(
            f"- [{rule.code} {rule.name}](../rules/{page_name(rule)}): {rule.what.strip().splitlines()[0]}"
            for rule in rules
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _nested(text: str) -> str:
    """Code inside a list item, indented as every Markdown wants it: four spaces, where skills have two."""
    return re.sub(r"^  (?=.)", "    ", text, flags=re.MULTILINE)


def _linked(text: str) -> str:
    """What is cited outside of code leads to its page: a rule to the rule's, a fact to what was measured."""
    pieces = re.split(r"(^ *```.*?^ *```|`[^`\n]*`)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(_cited(p) if n % 2 == 0 else p for n, p in enumerate(pieces))


def _cited(text: str) -> str:
    facts = _CITED.sub(lambda m: f"({', '.join(_fact(w) for w in m[1].split(', '))})", text)
    return _CODE.sub(_rule, facts)


def _fact(word: str) -> str:
    known = recorded(word)
    return word if known is None or known.is_rule else f"[{word}](../evidence.md#{known.anchor})"


def _rule(match: re.Match[str]) -> str:
    rule = rule_by_code(match[0])
    return match[0] if rule is None else f"[{match[0]}](../rules/{page_name(rule)})"
