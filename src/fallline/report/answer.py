"""An answer in words: short enough for a terminal, the rest with --more; and as Markdown."""

from __future__ import annotations

import textwrap

from fallline.triage.answer import SURE, Answer

__all__ = ["markdown", "text"]

_FEW = 3
_WIDTH = 96

_SAY_MORE = (
    "Say what the loop does and what you see: an error message, the loss, the gradient norm, or the code (--code train.py). "
    "Questions are read in English; messages and code may stand beside any language."
)
_NOT_OURS = f"This does not look like a question about PyTorch training, so there is no specialist for it. {_SAY_MORE}"


def text(answer: Answer, more: bool = False) -> str:
    """For a terminal."""
    if not answer.routes or answer.routes[0][1] < SURE:
        return _wrapped(_not_ours(answer), "")
    few = None if more else _FEW
    lines: list[str] = []
    who = ", ".join(f"{name} ({score:.2f})" for name, score in _answering(answer))
    lines += [f"For {who}: {'; '.join(c.title for c in answer.cases)}", ""]
    if answer.findings:
        lines.append("Known from the evidence")
        for finding in answer.findings[:few]:
            lines.append(_wrapped(f"{finding.code} at {finding.at}: {finding.message}", "  ", "  "))
        lines.append("")
    elif answer.run:
        lines += [_wrapped(_clean(answer), ""), ""]
    if answer.corrected is not None:
        lines += [
            "The code, corrected (each fix was read again)",
            "",
            textwrap.indent(answer.corrected.rstrip(), "    "),
            "",
        ]
    if answer.healthy:
        lines += [
            _wrapped(
                "Nothing here says that anything is wrong: the loss falls. Change nothing; watch the loss and the share of clipped updates.",
                "",
            ),
            "",
        ]
    for statement in answer.known[:few]:
        lines.append(_wrapped(statement.text + _backs(statement.backs, more), "", ""))
    if answer.known:
        lines.append("")
    lines += _section(
        "Measure first", [(s.run, s.tells + _backs(s.backs, more)) for s in answer.measure[:few]]
    )
    if more or not answer.healthy:
        rows = [(f"if {w}", t + _backs(b, more)) for w, t, b in answer.branches(few)]
        lines += _section("Then", rows)
    if answer.fixes:
        lines.append("Fixes, best first, each under its condition")
        for fix in answer.fixes[:few]:
            lines.append(_wrapped(f"{fix.title}, if {fix.when}", "  ", "    "))
            lines.append(_wrapped(fix.because + _backs(fix.backs, more), "    ", "    "))
            if fix.code:
                lines += ["", textwrap.indent(fix.code.rstrip(), "      "), ""]
            if more and fix.costs:
                lines.append(_wrapped(f"It costs: {fix.costs}", "    ", "    "))
        lines.append("")
    lines += _section(
        "Avoid", [(a.advice, a.because + _backs(a.backs, more)) for a in answer.avoid[:few]]
    )
    lines += _section(
        "Verify", [(s.run, s.tells + _backs(s.backs, more)) for s in answer.verify[:few]]
    )
    if more:
        lines += _section("Measured", [(f.name, f.says) for f in answer.measured()])
    hidden = sum(
        max(0, len(x) - _FEW)
        for x in (answer.findings, answer.fixes, answer.avoid, answer.measure, answer.tree)
    )
    if not more and (hidden or answer.tree):
        lines.append(
            "--more shows the whole decision tree, what backs each statement, and the rest."
        )
    return "\n".join(lines).rstrip()


def _not_ours(answer: Answer) -> str:
    """No specialist knows the question; who brought a run is told what it holds."""
    return f"{_clean(answer)} {_SAY_MORE}" if answer.run else _NOT_OURS


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


def _backs(names: tuple[str, ...], more: bool) -> str:
    return f" [{', '.join(names)}]" if more and names else ""


def _wrapped(words: str, first: str, rest: str = "") -> str:
    return textwrap.fill(
        " ".join(words.split()), _WIDTH, initial_indent=first, subsequent_indent=rest
    )


def markdown(answer: Answer) -> str:
    """For a page, a pull request, or an agent."""
    if not answer.routes or answer.routes[0][1] < SURE:
        return _not_ours(answer)
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
    if answer.healthy:
        out += [
            "Nothing here says that anything is wrong: the loss falls. Change nothing; watch the loss and the share of clipped updates.",
            "",
        ]
    if answer.known:
        out += [*(f"- {s.text}{_cite(s.backs)}" for s in answer.known), ""]
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
            out += [f"### {fix.title}", "", f"If {fix.when}. {fix.because}{_cite(fix.backs)}", ""]
            out += ["```python", fix.code.rstrip(), "```", ""] if fix.code else []
            out += [f"It costs: {fix.costs}", ""] if fix.costs else []
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


def _cite(names: tuple[str, ...]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _bullets(title: str, rows: list[tuple[str, str, tuple[str, ...]]]) -> list[str]:
    return (
        [f"## {title}", "", *(f"- {head}: {rest}{_cite(names)}" for head, rest, names in rows), ""]
        if rows
        else []
    )
