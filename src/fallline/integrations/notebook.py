"""Notebooks: `%load_ext fallline`, then `%%watch` at the head of a cell that trains.

The cell runs as it would without; below its own output stand the findings, at the cell's own lines, as HTML where the notebook can
show it and as text where it cannot.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import shlex
from html import escape
from types import CodeType
from typing import Any, NoReturn

from fallline.errors import UsageError
from fallline.integrations.cells import name_cells
from fallline.integrations.watch import Watch, watch
from fallline.report.html_findings import finding_cards
from fallline.report.run import overview, summary, verdict
from fallline.show.numbers import number
from fallline.show.terminal import Paint, counted
from fallline.taps.launch import without_us

__all__ = ["as_html", "as_text", "load", "name_cells"]

# Colours of the notebook's own theme: whatever text and background are, lines and panels are mixed from them.
_STYLE = """
.fallline{font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;color:inherit;--error:#c92a2a;--warning:#9a5b00;--info:#2b66d9;
--good:#1c7c43;--line:color-mix(in srgb,currentColor 22%,transparent);--panel:color-mix(in srgb,currentColor 5%,transparent);max-width:980px}
.fallline p,.fallline h3,.fallline dl,.fallline dd{margin:0}
.fallline .head{display:flex;flex-wrap:wrap;gap:4px 12px;align-items:baseline;margin:8px 0}
.fallline .soft,.fallline .name,.fallline .place,.fallline dt,.fallline .note{opacity:.72}
.fallline .code,.fallline .badge{background:var(--c);color:#fff;font-weight:600;border-radius:4px;padding:1px 7px}
.fallline .finding{border:1px solid var(--line);border-left:4px solid var(--c);border-radius:6px;margin:0 0 10px;overflow:hidden}
.fallline .finding>div{padding:9px 14px}
.fallline .finding h3{font-size:14px;font-weight:600;display:flex;flex-wrap:wrap;gap:2px 10px;align-items:baseline}
.fallline .place,.fallline pre,.fallline .advice code{font:12.5px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.fallline pre{margin:0;padding:8px 0;background:var(--panel);color:inherit;overflow-x:auto;border-block:1px solid var(--line)}
.fallline pre span{display:block;padding:0 14px;white-space:pre}
.fallline pre i{display:inline-block;width:2.6em;margin-right:1em;text-align:right;opacity:.6;font-style:normal}
.fallline pre .hit{background:color-mix(in srgb,var(--c) 22%,transparent);box-shadow:inset 3px 0 var(--c)}
.fallline .evidence{display:flex;flex-wrap:wrap;gap:2px 18px}.fallline .evidence div{display:flex;gap:6px}
.fallline .advice{margin-top:6px}
"""


def load(shell: Any) -> None:
    """What `%load_ext fallline` does."""
    name_cells(shell)
    shell.register_magic_function(WatchMagic(shell).watch, magic_kind="cell", magic_name="watch")


class _Options(argparse.ArgumentParser):
    """The options of `%%watch`; a wrong one is told below the cell, and the kernel lives on."""

    def __init__(self) -> None:
        super().__init__("%%watch", description="Run this cell and watch the training in it.")
        self.add_argument("--out", metavar="DIR", help="the run folder")
        self.add_argument("--budget", type=float, default=1.0, metavar="PCT")
        self.add_argument("--guard", choices=("skip", "exact", "stop", "off"), default="skip")
        self.add_argument("--log", action="append", metavar="NAME")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. {self.format_usage().strip()}")


class WatchMagic:
    """`%%watch` of one shell."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def watch(self, line: str, cell: str) -> Any:
        """Run this cell and watch the training in it. `%%watch --guard stop --out DIR --budget PCT --log NAME`"""
        __tracebackhide__ = True
        try:
            asked = _Options().parse_args(shlex.split(line))
            program = self._compiled(cell)
            watching = watch(out=asked.out, budget=asked.budget, guard=asked.guard, log=asked.log)
        except SystemExit:  # --help
            return None
        except (UsageError, ValueError) as error:
            from IPython.core.error import UsageError as CellError

            raise CellError(str(error)) from None
        try:
            value = None
            for code in program:
                value = eval(code, self.shell.user_ns)
        except BaseException as error:
            without_us(error)
            watching.fail(error)
            self._show(watching)
            raise
        watching.stop()
        self._show(watching)
        return value

    def _compiled(self, cell: str) -> list[CodeType]:
        """The cell's statements, and its last one apart where that is an expression: the cell's value."""
        shell = self.shell
        # one empty line stands for `%%watch`: the cell's lines keep the numbers that the notebook shows
        code = "\n" + shell.transform_cell(cell)
        # not shell.execution_count, which may already be the next cell's
        here = len(shell.user_ns["In"]) - 1
        name = shell.compile.cache(code, here)
        tree = shell.transform_ast(shell.compile.ast_parse(code, filename=name))
        waits = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        if compile(tree, name, "exec", flags=waits).co_flags & inspect.CO_COROUTINE:
            raise UsageError(
                "a cell with `await` outside of a function cannot run under %%watch: "
                "put fallline.watch(...) before the training and .stop() after it"
            )
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        program = [shell.compile(tree, name, "exec")]
        if last is not None:
            program.append(shell.compile(ast.Expression(last.value), name, "eval"))
        return program

    def _show(self, watching: Watch) -> None:
        self.shell.display_pub.publish(
            {"text/plain": as_text(watching), "text/html": as_html(watching)}
        )


def as_text(watching: Watch) -> str:
    """What was found, for a notebook that shows text only."""
    if watching.series is None:
        return "fallline: the cell made no update of an optimizer."
    text = summary(watching.series, watching.findings, Paint(False))
    return f"{text}\n  fallline report {watching.folder}"


def as_html(watching: Watch) -> str:
    """What was found, in the colours of the notebook's theme. Everything that comes from the program is escaped."""
    series, findings = watching.series, watching.findings
    if series is None:
        return f'<div class="fallline"><style>{_STYLE}</style><p class="soft">{escape(as_text(watching))}</p></div>'
    worst = min((f.severity for f in findings), key=lambda s: s.rank, default=None)
    track = max(series.tracks, key=lambda t: len(t.rows), default=None)
    seen = overview(series, track)
    facts = [counted(seen.updates, "update")]
    if seen.skipped:
        facts.append(f"{seen.skipped:,} skipped")
    facts.append(f"loss {number(seen.first_loss)} → {number(seen.last_loss)}")
    if seen.norm is not None:
        facts.append(f"gradient norm {number(seen.norm)}")
    return (
        f'<div class="fallline"><style>{_STYLE}</style><p class="head" style="--c:var(--{worst.value if worst else "good"})">'
        f'<span class="badge">fallline</span><b>{escape(verdict(findings).capitalize())}</b>'
        f'<span class="soft">{escape(" · ".join(facts))}</span></p>{finding_cards(series, findings)}'
        f'<p class="soft">fallline report {escape(str(watching.folder))}</p></div>'
    )
