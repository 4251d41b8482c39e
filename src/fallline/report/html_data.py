"""One page about what the first batches of a run teach: findings, samples token by token, what can learn."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from fallline._version import __version__
from fallline.finding import Finding
from fallline.report.html_findings import finding_cards
from fallline.report.html_style import STYLE
from fallline.runs.series import Series
from fallline.show.numbers import number
from fallline.show.terminal import counted

if TYPE_CHECKING:
    from fallline.instruments.data.report import Run, Sample, Taught

__all__ = ["data_page"]

_STYLE = """
:root{--learned:#1c7c43;--learned-bg:#d9f2e3;--special:#b35c00;--wrong-bg:#fbdcdc}
@media (prefers-color-scheme:dark){:root{--learned:#8fe3b0;--learned-bg:#143524;--special:#ffb266;--wrong-bg:#4a1c1c}}
.sample{background:var(--panel);border:1px solid var(--line);border-radius:10px;margin:0 0 14px;padding:14px 18px}
.sample .where{color:var(--soft);font-size:12.5px;margin-bottom:8px}
.tokens{font:13px/1.85 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
.tokens span{border-radius:3px;padding:1px 0}
.learned{background:var(--learned-bg);color:var(--learned)}
.ignored{color:var(--soft)}
.wrong{background:var(--wrong-bg);color:var(--error)}
.special{color:var(--special)}
.padding{color:var(--soft);opacity:.6;border:1px dashed var(--line);padding:0 4px!important}
.border{border-left:3px solid var(--error);margin:0 5px}
.shares .learned,.shares .wrong,.shares .ignored,.shares .special,.shares .padding{padding:1px 7px;border-radius:4px}
"""
_KINDS = {
    "learned": "learned",
    "ignored": "read, not learned",
    "special": "special token, not learned",
    "padding": "padding",
    "wrong": "padding that is learned",
}


def data_page(taught: Taught, script: str) -> str:
    """The whole page, without a script or a network."""
    body = [_head(taught, script)]
    if taught.findings:
        body.append(f"<h2>Findings</h2>{finding_cards(_nowhere(), taught.findings)}")
    if taught.samples:
        body.append(f"<h2>What each token is taught</h2>{_legend(taught)}")
        body += [_sample(sample) for sample in taught.samples]
    body += [_plain(taught), _learning(taught), _policy(taught)]
    written = time.strftime("%Y-%m-%d %H:%M")
    body.append(f"<footer>Written by fallline {escape(__version__)} on {written}.</footer>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(os.path.basename(script))} · what it teaches · fallline</title>"
        f'<link rel="icon" href="data:,"><style>{STYLE}{_STYLE}</style></head><body><main>{"".join(body)}</main></body></html>\n'
    )


def _nowhere() -> Series:
    """The cards ask a run for what it kept of the source; here the files themselves are read."""
    return Series()


def _head(taught: Taught, script: str) -> str:
    wrong = [f for f in taught.findings if f.severity != "info"]
    says = counted(len(wrong), "finding") if wrong else "Nothing wrong was found"
    colour = _worst(taught.findings)
    seen = f"{len(taught.lessons)} batches, {counted(taught.rows, 'sample')}, {counted(taught.updates, 'update')}"
    hint = "Each is explained below." if wrong else "What the batches hold is below."
    return (
        f'<p class="brand">fallline · what the data teaches</p><header><h1>{escape(script)}</h1></header><p class="facts">{seen}</p>'
        f'<div class="verdict" style="--c:var(--{colour})"><strong>{says}</strong><span>{hint}</span></div>{_tiles(taught)}'
    )


def _worst(findings: list[Finding]) -> str:
    worst = min(
        (f.severity.value for f in findings), key=("error", "warning", "info").index, default="good"
    )
    return "good" if worst == "info" else worst


def _tiles(taught: Taught) -> str:
    tiles = [
        (name.capitalize(), f"{share:.0%}<small>of the positions</small>")
        for name, share in _named(taught).items()
    ]
    twice = taught.repeated.samples - taught.repeated.distinct
    tiles.append(("Repeated samples", f"{twice}<small>of {taught.repeated.samples}</small>"))
    if taught.losses:
        tiles.append(
            ("Loss", f"{number(taught.losses[-1])}<small>from {number(taught.losses[0])}</small>")
        )
    shown = "".join(f'<div class="tile"><dt>{k}</dt><dd>{v}</dd></div>' for k, v in tiles)
    return f'<dl class="tiles">{shown}</dl>'


def _named(taught: Taught) -> dict[str, float]:
    names = {"learned": "learned", "ignored": "only read", "padding": "padding"}
    return {shown: taught.shares[k] for k, shown in names.items() if taught.shares}


def _legend(taught: Taught) -> str:
    kinds = {run.kind for sample in taught.samples for run in sample.runs}
    items = "".join(f'<span><b class="{k}">{v}</b></span>' for k, v in _KINDS.items() if k in kinds)
    return f'<p class="shares" style="margin:0 0 12px">{items}</p>'


def _sample(sample: Sample) -> str:
    said = f"batch {sample.batch + 1}, sample {sample.row + 1}: {sample.learned} of {sample.tokens} tokens learned"
    said += f", {sample.padding} padding" if sample.padding else ""
    return f'<article class="sample"><p class="where">{said}</p><div class="tokens">{"".join(map(_run, sample.runs))}</div></article>'


def _run(run: Run) -> str:
    if run.kind == "border":
        return '<span class="border" title="the next packed sample"></span>'
    text = f"{run.text} × {run.tokens}" if run.kind == "padding" else run.text
    title = f"{_KINDS[run.kind]}, {counted(run.tokens, 'token')}" if run.tokens else "left out"
    return f'<span class="{run.kind}" title="{title}">{escape(text)}</span>'


def _plain(taught: Taught) -> str:
    plain, rows = taught.plain, []
    if plain.inputs:
        shape = "×".join(map(str, plain.inputs["shape"]))
        rows.append(
            (
                "inputs",
                shape,
                *(number(plain.inputs.get(n)) for n in ("least", "greatest", "mean", "std")),
            )
        )
    if plain.targets:
        rows.append(
            (
                "targets",
                "",
                *(number(plain.targets.get(n)) for n in ("least", "greatest", "mean", "std")),
            )
        )
    table = _table(("", "shape", "least", "greatest", "mean", "std"), rows) if rows else ""
    if plain.classes:
        total = sum(plain.classes.values())
        counts = [
            (str(c), f"{n:,}", f"{n / total:.0%}") for c, n in list(plain.classes.items())[:20]
        ]
        table += _table(("class", "samples", "share"), counts)
    return f"<h2>Inputs and targets</h2>{table}" if table else ""


def _learning(taught: Taught) -> str:
    found = ""
    for learning in taught.learning:
        rows = [
            (g.name, *(f"{n:,}" for n in (g.parameters, g.trainable, g.with_gradient, g.optimized)))
            for g in learning.groups
        ]
        found += f"<h2>What can learn in {escape(learning.model)}</h2>"
        found += _table(("", "parameters", "trainable", "with a gradient", "optimized"), rows)
        found += "".join(f'<p class="note">{escape(n)}</p>' for n in learning.notes)
    return found


def _policy(taught: Taught) -> str:
    rows = [
        (
            f"trainer against {of}",
            f"{a.tokens:,}",
            number(a.mean),
            number(a.rounding),
            f"{a.ratio[0]:.3g} to {a.ratio[2]:.3g}",
            f"{a.clipped:.0%}",
            number(a.kl),
        )
        for of, a in taught.policy.pairs[:8]
    ]
    if not rows:
        return ""
    names = ("", "tokens", "mean difference", "rounding", "ratio", "outside 0.8 to 1.2", "KL")
    return f"<h2>Log-probabilities of the same tokens</h2>{_table(names, rows)}"


def _table(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(n)}</th>" for n in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
