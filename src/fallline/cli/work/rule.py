"""What `fallline rule` does."""

from __future__ import annotations

import sys

from fallline.errors import UsageError
from fallline.report.rule_page import evidence, page
from fallline.rules import all_rules, rule_by_code
from fallline.show.terminal import SEVERITY_STYLE, Paint, wants_colour

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from fallline.rule import Rule

__all__ = ["run"]

# the command that finds it
_FOUND_BY = {"reader": "check", "watcher": "run", "both": "check, run"}


def run(args: Namespace) -> int:
    rules = _chosen(args)
    if args.output_format == "json":
        import json

        found = [_as_dict(rule) for rule in rules]
        print(
            json.dumps(
                found if args.all or len(found) > 1 else found[0], indent=2, ensure_ascii=False
            )
        )
    elif args.output_format == "markdown":
        print("\n".join(page(rule) for rule in rules), end="")
    elif args.all:
        print(_table(rules))
    elif not _rendered(rules):
        print("\n\n".join(_text(rule) for rule in rules))
    return 0


def _rendered(rules: list[Rule]) -> bool:
    """The pages with highlighted code, where rich is installed and a person looks at a terminal."""
    if not wants_colour("auto", sys.stdout):
        return False
    try:
        from rich.console import Console
        from rich.markdown import Markdown
    except ImportError:
        return False
    console = Console()
    for rule in rules:
        console.print(Markdown(page(rule), code_theme="ansi_dark"))
    return True


def _chosen(args: Namespace) -> list[Rule]:
    if args.all:
        return list(all_rules())
    if not args.code:
        raise UsageError("name a rule, such as `fallline rule FL201`, or give --all")
    rules = []
    for code in args.code:
        rule = rule_by_code(code)
        if rule is None:
            raise UsageError(_unknown(code))
        rules.append(rule)
    return rules


def _unknown(code: str) -> str:
    from difflib import get_close_matches

    names = [word for rule in all_rules() for word in (rule.code, rule.name)]
    near = [name for name in names if name.startswith(code.upper())]  # FL2
    near = near or get_close_matches(code.upper(), names, 2)
    near = near or get_close_matches(code.lower(), names, 2)
    near = near or [name for name in names if len(code) > 2 and code.lower() in name][:4]  # clip
    hint = f"Did you mean {' or '.join(near)}?" if near else "`fallline rule --all` lists them."
    return f"there is no rule '{code}'. {hint}"


def _as_dict(rule: Rule) -> dict[str, Any]:
    return {
        "code": rule.code,
        "name": rule.name,
        "severity": rule.severity.value,
        "specialist": rule.specialist.name,
        "seen_by": rule.seen_by,
        "fixable": rule.fixable,
        "what": rule.what.strip(),
        "why": rule.why.strip(),
        "instead": rule.instead.strip(),
        "fix_safety": rule.fix_safety.strip(),
        "facts": list(rule.facts),
        "evidence": evidence(rule),
        "references": list(rule.references),
        "wrong": list(rule.wrong),
        "right": list(rule.right),
    }


def _table(rules: list[Rule]) -> str:
    paint = Paint(wants_colour("auto", sys.stdout))
    width = max((len(rule.name) for rule in rules), default=0)
    lines: list[str] = []
    specialist = ""
    for rule in rules:
        if rule.specialist.name != specialist:
            specialist = rule.specialist.name
            lines += [*([""] if lines else []), paint(specialist, "bold")]
        severity = paint(f"{rule.severity.value:<7}", SEVERITY_STYLE[rule.severity.value])
        mark = "[*]" if rule.fixable else "   "
        what = rule.what.strip().split("\n")[0]
        lines.append(
            f"  {rule.code}  {severity}  {_FOUND_BY[rule.seen_by]:<10}  {mark}  {rule.name:<{width}}  {what}"
        )
    return "\n".join(lines)


def _text(rule: Rule) -> str:
    paint = Paint(wants_colour("auto", sys.stdout))
    fixed = "fixed by --fix" if rule.fixable else "no automatic fix"
    parts = [
        f"{paint(rule.code, SEVERITY_STYLE[rule.severity.value])} {paint(rule.name, 'bold')}",
        f"{rule.severity.value} · {rule.specialist.name} · found by {_FOUND_BY[rule.seen_by]} · {fixed}",
        "",
        rule.what.strip(),
        "",
        paint("Why is this bad?", "bold"),
        rule.why.strip(),
    ]
    if rule.wrong:
        parts += ["", paint("Wrong", "bold"), _indented(rule.wrong[0])]
    parts += ["", paint("Use instead", "bold"), rule.instead.strip()]
    if rule.right:
        parts += ["", _indented(rule.right[0])]
    measured = evidence(rule)
    if measured:
        again = f"`fallline prove {rule.code}` measures it again."
        parts += ["", paint("Evidence", "bold"), *measured, again]
    for heading, text in (
        ("Fix safety", rule.fix_safety.strip()),
        ("References", "\n".join(rule.references)),
    ):
        if text:
            parts += ["", paint(heading, "bold"), text]
    return "\n".join(parts)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.strip("\n").split("\n"))
