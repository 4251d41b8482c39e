"""Findings on the page: what, where, the lines of the source, the measured evidence, why it matters and what to do."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

from fallline.finding import Finding
from fallline.proof.record import recorded
from fallline.rules import rule_by_code
from fallline.runs.excerpt import excerpt
from fallline.runs.series import Series
from fallline.show.numbers import number

__all__ = ["finding_cards"]

_HIDDEN = frozenset({"witness", "settings", "function"})


def finding_cards(series: Series, findings: list[Finding]) -> str:
    """The worst first."""
    ordered = sorted(findings, key=lambda f: f.severity.rank)
    return "".join(_card(series, finding) for finding in ordered)


def _card(series: Series, finding: Finding) -> str:
    rule = rule_by_code(finding.code)
    advice = ""
    if rule is not None:
        advice = (
            f'<p class="advice"><b>Why.</b> {_prose(rule.why)}</p>'
            f'<p class="advice"><b>Instead.</b> {_prose(rule.instead)}</p>'
        )
        advice += _experiment(finding.code)
    if finding.fix is not None:
        advice += f'<p class="advice"><b>Fix.</b> {escape(finding.fix.title)}</p>'
    return (
        f'<article class="finding" style="--c:var(--{finding.severity.value})"><div><h3><span class="code">{escape(finding.code)}</span>'
        f'<span>{escape(finding.name)}</span><span class="name">{finding.severity.value}</span></h3>'
        f'<p class="message">{escape(finding.message)}</p><p class="place">{escape(str(finding.at))}</p></div>'
        f"{_source(series, finding)}<div>{_evidence(series, finding.evidence)}{advice}</div></article>"
    )


def _experiment(code: str) -> str:
    """What the rule's experiment showed, so that the claim can be checked and not only believed."""
    known = recorded(code)
    if known is None:
        return ""
    again = f"<code>fallline prove {escape(code)}</code> measures it again."
    return f'<p class="advice"><b>Evidence.</b> {_prose(known.says)} {again}</p>'


def _source(series: Series, finding: Finding) -> str:
    seen = excerpt(finding, series)
    if not seen.lines:
        return ""
    lines = "".join(
        f"<span{' class=hit' if hit else ''}><i>{n}</i>{escape(text) or ' '}</span>"
        for n, text, hit in seen.lines
    )
    note = (
        '<div><p class="note">This file has changed since the run.</p></div>'
        if seen.changed
        else ""
    )
    return f'<pre tabindex="0" aria-label="source of the finding"><code>{lines}</code></pre>{note}'


def _evidence(series: Series, evidence: dict[str, Any]) -> str:
    """What was measured; which rank and which optimizer only where there are several."""
    hidden = _HIDDEN | ({"rank"} if len(series.ranks) < 2 else set())
    hidden |= {"optimizer"} if len({t.optimizer for t in series.tracks}) < 2 else set()
    shown = [(k, v) for k, v in evidence.items() if k not in hidden and v is not None and v != ""]
    if not shown:
        return ""
    items = "".join(
        f"<div><dt>{escape(k.replace('_', ' '))}</dt><dd>{escape(_value(v))}</dd></div>"
        for k, v in shown
    )
    return f'<dl class="evidence">{items}</dl>'


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        if isinstance(value, list):
            shown = ("; " if dict in map(type, value) else ", ").join(map(_value, value[:8]))
            return shown + (f" and {len(value) - 8} more" if len(value) > 8 else "")
        if isinstance(value, dict):
            return ", ".join(f"{k} {_part(k, v)}" for k, v in list(value.items())[:8])
        return value if isinstance(value, str) else json.dumps(value, default=str)
    return number(float(value))


def _part(name: str, value: Any) -> str:
    return "×".join(map(str, value)) or "scalar" if name == "shape" else _value(value)


def _prose(text: str) -> str:
    """Plain Markdown with code spans, and blocks of code as such."""
    parts = re.split(r"```\w*\n(.*?)```", text, flags=re.DOTALL)
    said = [_block(p) if i % 2 else _spans(p) for i, p in enumerate(parts)]
    return "".join(said)


def _spans(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(" ".join(text.split()), quote=False))


def _block(code: str) -> str:
    lines = "<br>".join(
        escape(line, quote=False).replace("  ", "&nbsp; ") for line in code.rstrip().split("\n")
    )
    return f"<br><code>{lines}</code>"
