"""One rule as Markdown: the page under docs/rules/, `fallline rule`, and SARIF's help are this same text."""

from __future__ import annotations

from collections.abc import Iterable

from fallline.proof.record import recorded
from fallline.rule import Rule
from fallline.specialists import SPECIALISTS

__all__ = ["evidence", "index", "page", "page_name"]

_SEEN = {
    "reader": "`fallline check`",
    "watcher": "`fallline run`",
    "both": "`fallline check` and `fallline run`",
}


def page_name(rule: Rule) -> str:
    """The file name of a rule's page."""
    return f"{rule.code}-{rule.name}.md"


def page(rule: Rule) -> str:
    """The rule's page, with the same headings for every rule."""
    parts = [
        f"# {rule.code} {rule.name}",
        f"{rule.severity.value} · {rule.specialist.name} · seen by {_SEEN[rule.seen_by]} · {'fixed by `--fix`' if rule.fixable else 'no automatic fix'}",
        "## What it does",
        rule.what.strip(),
        "## Why is this bad?",
        rule.why.strip(),
    ]
    if rule.wrong:
        parts += ["## Example", _code(rule.wrong[0])]
    parts += ["## Use instead", rule.instead.strip()]
    if rule.right:
        parts.append(_code(rule.right[0]))
    measured = evidence(rule)
    if measured:
        link = f"[../evidence.md](../evidence.md#{rule.code.lower()})"
        parts += [
            "## Evidence",
            *measured,
            f"`fallline prove {rule.code}` measures it again; {link} has the numbers.",
        ]
    parts += _cited(rule)
    if rule.fix_safety:
        parts += ["## Fix safety", rule.fix_safety.strip()]
    if rule.references:
        parts += ["## References", "\n".join(f"- {reference}" for reference in rule.references)]
    parts += [
        "## Silence it",
        f"`# fallline: ignore[{rule.code}]` or `# noqa: {rule.code}` on the line, "
        f'or `ignore = ["{rule.code}"]` in `[tool.fallline]`.',
    ]
    return "\n\n".join(parts) + "\n"


def evidence(rule: Rule) -> list[str]:
    """What the rule's experiment measured when it was recorded, in sentences; nothing where it has none."""
    known = recorded(rule.code)
    if known is None:
        return []
    taught = [f"Often taught: {known.taught}"] if known.taught else []
    return [*taught, f"Measured: {known.says}"]


def _cited(rule: Rule) -> list[str]:
    """The facts the rule rests on, each with what was measured."""
    known = [outcome for name in rule.facts if (outcome := recorded(name)) is not None]
    if not known:
        return []
    listed = "\n".join(f"- [{o.of}](../evidence.md#{o.of}): {o.says}" for o in known)
    return [f"Facts it rests on:\n\n{listed}"]


def index(rules: Iterable[Rule]) -> str:
    """The table of all rules, by specialist."""
    known = list(rules)
    parts = [
        "# Rules",
        "One code for one mistake, whoever finds it. `fallline rule FL101` prints a page; `[*]` marks what `--fix` can fix.\n"
        "These pages are made from the rules themselves by `make docs`.",
    ]
    for specialist in SPECIALISTS:
        rows = [r for r in known if r.specialist == specialist]
        if rows:
            parts.append(f"## {specialist.name}\n\n{specialist.about}")
            table = [
                "| code | name | severity | seen by | fix | what |",
                "|---|---|---|---|---|---|",
            ]
            table += [
                f"| [{r.code}]({page_name(r)}) | {r.name} | {r.severity.value} | {r.seen_by} | {'[*]' if r.fixable else ''} | {_cell(r.what)} |"
                for r in rows
            ]
            parts.append("\n".join(table))
    return "\n\n".join(parts) + "\n"


def _code(text: str) -> str:
    return f"```python\n{text.strip(chr(10))}\n```"


def _cell(text: str) -> str:
    return text.strip().split("\n")[0].replace("|", "\\|")
