"""Side by side with other tools, from what the benchmarks wrote: docs/comparison.md."""

from __future__ import annotations

import re
from pathlib import Path

from fallline.report.rule_page import page_name
from fallline.rules import rule_by_code

__all__ = ["page"]

# The mistakes of the comparison with other linters, and which of those found each (November 2026: torchfix 0.7.0,
# flake8 7.5 with torchfix, ruff 0.17.4 with everything on, pylint 4.1, dslinter 2.0.9, semgrep 1.182 with two rule sets,
# CodeSmile, mllint 0.12, MLScent 0.1.2, mldoct 1.0; each over the wrong script and its correct twin).
_MISTAKES = (
    ("clipping after the step", "FL101", ""),
    ("clipping before backward", "FL102", ""),
    ("clipping scaled gradients", "FL201", ""),
    ("unscale_ twice", "FL202", ""),
    ("a step that bypasses the scaler", "FL203", ""),
    ("accumulation, loss not divided", "FL104", ""),
    ("zero_grad inside the accumulation", "FL105", ""),
    ("no zero_grad at all", "FL106", "dslinter, CodeSmile, MLScent, mldoct"),
    ("clipping every micro-batch", "FL103", ""),
    ("DDP accumulation without no_sync", "FL301", ""),
    ("scheduler once a micro-batch", "FL108", ""),
    ("total_loss += loss", "FL401", "mldoct"),
    ("log of softmax", "FL605", "dslinter"),
    ("softmax before CrossEntropyLoss", "FL606", ""),
    ("checkpoint without the optimizer", "FL701", ""),
    ("no sampler.set_epoch", "FL303", ""),
    ("evaluation without no_grad", "FL402", ""),
    ("layers in a Python list", "FL801", ""),
)

_HEAD = """\
# Side by side

This page lists only what we measured. Times and distances come from [the results](../benchmarks/RESULTS.md) of scripts in `benchmarks/` that you can run yourself;
`make docs` generates this page from them.

## Finding mistakes in code

We gave eighteen scripts with one mistake each, and their correct twins, to ten tools that people use today. A mistake counts as found if the tool reports it in
the wrong script and not in the twin. (The last column was made by hand in November 2026, with the newest versions of that month.) Together the ten find 3 of the 18; the best finds 2. The mistakes are ours to begin with: each of the 18
is a fallline rule, and its test reads (and, where possible, runs) scripts like these. On code that we did not choose, see the [field report](field-report.md).

| mistake | fallline | others that find it |
|---|---|---|
"""

_CHECK = """
The other tools have different strengths: ruff has hundreds of rules about Python itself, torchfix has rules about deprecated and dangerous torch calls. fallline has few of either.

## How long reading takes
"""

_WATCH = """
## What watching costs

How much longer a training step takes with the tool than without; bare and watched steps alternate in one process. The tools also differ in what they report: see
[what fallline reports](run.md).
"""

_ENGINE = """
## Accumulation that equals the big batch

How far the parameters end up from those of one big batch, and what a micro-batch costs. Each loop follows the tool's own documentation.
"""

_FAULTS = """
## Faults injected into training

"""


def page(results: Path) -> str:
    """The page from the text that the benchmarks wrote."""
    text = results.read_text(encoding="utf-8")
    rows = [f"| {what} | {_link(code)} | {others or '–'} |" for what, code, others in _MISTAKES]
    faults = re.search(r"^\*\*\d+ of \d+\*\* injected faults.*$", text, re.MULTILINE)
    parts = [
        _HEAD + "\n".join(rows),
        _CHECK.strip("\n"),
        _section(text, "check"),
        _WATCH.strip("\n"),
        _section(text, "watch"),
        _ENGINE.strip("\n"),
        _section(text, "engine on a CPU"),
        _FAULTS.strip("\n"),
        faults[0] if faults else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(text: str, name: str) -> str:
    """Where a section's numbers come from, and its first table."""
    found = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"benchmarks/RESULTS.md has no section '{name}'"
    source = found[1].strip().split("\n\n")[0]
    table = re.search(r"(?:^\|.*\n?)+", found[1], re.MULTILINE)
    assert table is not None, f"the section '{name}' of benchmarks/RESULTS.md has no table"
    return f"{table[0].strip()}\n\n{source}"


def _link(code: str) -> str:
    rule = rule_by_code(code)
    assert rule is not None
    return f"[{code} {rule.name}](rules/{page_name(rule)})"
