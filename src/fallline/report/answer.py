"""An answer in words: short enough for a terminal, the rest with --more; and as Markdown."""

from __future__ import annotations

import re
import textwrap

from fallline.triage.answer import Answer
from fallline.triage.claim import Action

__all__ = ["brief", "chapter", "cite", "markdown", "text"]

_WIDTH = 96
_MOST_LINES = 25
_FOOT = 2  # the line about --more, and the one before it
_CLAUSE = re.compile(r"[a-z`]")  # what to see is the end of a sentence, or a sentence of its own


def text(answer: Answer, more: bool = False) -> str:
    """For a terminal: the answer and what to do, or with `more` the whole chapter after it."""
    short = brief(answer, len(answer.reply.actions) * _MOST_LINES if more else _MOST_LINES)
    if not more or not answer.reply.ours:
        return short
    return "\n\n".join(part for part in (short, _chapter(answer)) if part)


def brief(answer: Answer, most: int = _MOST_LINES) -> str:
    """The answer in at most 25 lines: whatever does not fit is left to --more."""
    most = max(most, _MOST_LINES)
    reply = answer.reply
    lines = _wrapped_each(reply.answer)
    for number, action in enumerate(reply.actions, 1):
        block = (
            ["", *_action(number, action)]
            if action.code or number == 1
            else _action(number, action)
        )
        if len(lines) + len(block) > most - _FOOT:
            block = [""] * (number == 1) + _action(number, action, code=False)
        if len(lines) + len(block) > most - _FOOT:
            break
        lines += block
    if reply.clarify and reply.clarify not in reply.says:
        lines += ["", *_wrapped(reply.clarify, "").splitlines()]
    if answer.cases and reply.ours:
        lines += [
            "",
            "--more: what to measure, every fix with its condition, and what backs each statement.",
        ]
    return "\n".join(lines[:most]).rstrip()


def _action(number: int, action: Action, code: bool = True) -> list[str]:
    words = _worded(action)
    if not code and action.code:  # nothing follows the colon here
        words = words.removesuffix(":").removesuffix(".") + " (the code: --more)."
    lines = _wrapped(words, f"{number}. ", "   ").splitlines()
    if code and action.code:
        lines += textwrap.indent(action.code.rstrip(), "       ").splitlines()
    if action.see:
        lines += _wrapped(_seen(action), "   ", "   ").splitlines()
    return lines


def _worded(action: Action) -> str:
    """What to do, after its condition."""
    if not action.when:
        return action.do
    name = action.do[:1] == "`" or action.do[1:2].isupper()
    return f"If {action.when}: {action.do if name else action.do[:1].lower() + action.do[1:]}"


def _seen(action: Action) -> str:
    return f"To check: {action.see}" if _CLAUSE.match(action.see) else action.see


def _chapter(answer: Answer) -> str:
    """All that the cases hold, for who wants to read on."""
    if not answer.cases and not answer.findings:
        return ""
    lines: list[str] = []
    who = ", ".join(f"{name} ({score:.2f})" for name, score in _answering(answer))
    lines += [f"For {who}: {'; '.join(c.title for c in answer.cases)}", ""]
    if answer.findings:
        lines.append("Known from the evidence")
        for finding in answer.findings:
            lines.append(_wrapped(f"{finding.code} at {finding.at}: {finding.message}", "  ", "  "))
        lines.append("")
    elif answer.run:
        lines += [_wrapped(_clean(answer), ""), ""]
    if answer.corrected is not None:
        lines += ["The code, corrected (each fix was read again)", ""]
        lines += [textwrap.indent(answer.corrected.rstrip(), "    "), ""]
    for statement in answer.known:
        lines.append(_wrapped(statement.text + _backs(statement.backs), "", ""))
    if answer.known:
        lines.append("")
    lines += _section("Measure first", [(s.run, s.tells + _backs(s.backs)) for s in answer.measure])
    lines += _section("Then", [(f"if {w}", t + _backs(b)) for w, t, b in answer.tree])
    if answer.fixes:
        lines.append("Fixes, best first, each under its condition")
        for fix in answer.fixes:
            lines.append(_wrapped(f"{fix.title}, if {fix.when}", "  ", "    "))
            lines.append(_wrapped(fix.because + _backs(fix.backs), "    ", "    "))
            if fix.code:
                lines += ["", textwrap.indent(fix.code.rstrip(), "      "), ""]
            if fix.costs:
                lines.append(_wrapped(f"What it costs: {fix.costs}", "    ", "    "))
        lines.append("")
    lines += _section("Avoid", [(a.advice, a.because + _backs(a.backs)) for a in answer.avoid])
    lines += _section("Verify", [(s.run, s.tells + _backs(s.backs)) for s in answer.verify])
    lines += _section("Measured", [(f.name, f.says) for f in answer.measured()])
    return "\n".join(lines).rstrip()


def _clean(answer: Answer) -> str:
    return f"Nothing wrong was found in the run in {answer.run}; `fallline report {answer.run}` shows its curves."


def _answering(answer: Answer) -> list[tuple[str, float]]:
    """The specialists whose cases the answer holds, with their scores."""
    those = {case.specialist for case in answer.cases}
    return [(name, score) for name, score in answer.routes if name in those]


def _section(title: str, rows: list[tuple[str, str]]) -> list[str]:
    if not rows:
        return []
    lines = [title]
    for head, rest in rows:
        if "\n" in head:
            lines += [textwrap.indent(head.rstrip(), "    "), _wrapped(rest, "      ", "      ")]
        else:
            lines += [f"  {head}", _wrapped(rest, "      ", "      ")]
    return [*lines, ""]


def _backs(names: tuple[str, ...]) -> str:
    return f" [{', '.join(names)}]" if names else ""


def _wrapped(words: str, first: str, rest: str = "") -> str:
    return textwrap.fill(
        " ".join(words.split()), _WIDTH, initial_indent=first, subsequent_indent=rest
    )


def _wrapped_each(words: str) -> list[str]:
    """Several paragraphs, with an empty line between them."""
    return "\n\n".join(_wrapped(part, "") for part in words.split("\n")).splitlines()


def markdown(answer: Answer, more: bool = False) -> str:
    """For a page, a pull request, or an agent: the answer, or with `more` the whole chapter after it."""
    reply = answer.reply
    out = [reply.answer, ""]
    for number, action in enumerate(reply.actions, 1):
        out += [f"{number}. " + _worded(action)]
        if action.code:
            language = next((n for n in ("bash", "diff") if n in action.proof), "python")
            out += [
                "",
                f"   ```{language}",
                textwrap.indent(action.code.rstrip(), "   "),
                "   ```",
                "",
            ]
        out += [f"   {_seen(action)}"] if action.see else []
    if reply.clarify and reply.clarify not in reply.says:
        out += ["", reply.clarify]
    if more and reply.ours:
        out += ["", chapter(answer)]
    return "\n".join(out).rstrip()


def chapter(answer: Answer) -> str:
    """All that the cases hold, as Markdown."""
    if not answer.cases and not answer.findings:
        return ""
    out = [f"# {'; '.join(c.title for c in answer.cases)}", ""]
    out += [f"*{name}* ({score:.2f})" for name, score in _answering(answer)]
    out.append("")
    if answer.findings:
        out += [
            "## Known from the evidence",
            "",
            *(f"- **{f.code}** at `{f.at}`: {f.message}" for f in answer.findings),
            "",
        ]
    elif answer.run:
        out += [_clean(answer), ""]
    if answer.corrected is not None:
        out += ["## The code, corrected", "", "```python", answer.corrected.rstrip(), "```", ""]
    if answer.known:
        out += [*(f"- {s.text}{cite(s.backs)}" for s in answer.known), ""]
    out += _bullets(
        "Measure first",
        [
            (
                f"`{s.run}`" if "\n" not in s.run else f"\n```python\n{s.run.rstrip()}\n```\n",
                s.tells,
                s.backs,
            )
            for s in answer.measure
        ],
    )
    out += _bullets("Then", answer.tree)
    if answer.fixes:
        out += ["## Fixes, best first", ""]
        for fix in answer.fixes:
            out += [f"### {fix.title}", "", f"If {fix.when}. {fix.because}{cite(fix.backs)}", ""]
            out += ["```python", fix.code.rstrip(), "```", ""] if fix.code else []
            out += [f"What it costs: {fix.costs}", ""] if fix.costs else []
    out += _bullets("Avoid", [(a.advice, a.because, a.backs) for a in answer.avoid])
    out += _bullets(
        "Verify",
        [
            (
                f"`{s.run}`" if "\n" not in s.run else f"\n```python\n{s.run.rstrip()}\n```\n",
                s.tells,
                s.backs,
            )
            for s in answer.verify
        ],
    )
    out += _bullets("Measured", [(f"`{f.name}`", f.says, ()) for f in answer.measured()])
    return "\n".join(out).rstrip()


def cite(names: tuple[str, ...]) -> str:
    """In brackets, behind what they back."""
    return f" ({', '.join(names)})" if names else ""


def _bullets(title: str, rows: list[tuple[str, str, tuple[str, ...]]]) -> list[str]:
    return (
        [f"## {title}", "", *(f"- {head}: {rest}{cite(names)}" for head, rest, names in rows), ""]
        if rows
        else []
    )
