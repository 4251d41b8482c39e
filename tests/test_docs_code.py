"""Every Python block in the documents: it parses, the reader reads it, and where it is on its own it runs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fallline.triage.evidence import corrected
from fallline.verdict.reading import read_text

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    return [textwrap.dedent(match[2]) for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_CODE = [page for page in DOCUMENTS if blocks(page)]
RULES = [page for page in WITH_CODE if page.parent.name == "rules"]
# What a page may take for granted: the reader's own model, data and loop.
GIVEN = """\
import torch
from torch import nn

import fallline

torch.set_num_threads(1)
model = nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
dataset = torch.utils.data.TensorDataset(torch.randn(96, 8), torch.randn(96, 2))
loader = torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True)
loss_fn = nn.MSELoss()
tokenizer = None  # theirs, if their data is text


def train():
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()
        optimizer.step()


"""
NOT_RUN = {
    "check.md": "lines that show where a comment stands",
    "engine.md": "tests/engine/test_guide.py runs it",
}
# Written by hand: each block continues where the one before it ended.
RUN = [
    page for page in WITH_CODE if page.parent in {ROOT, ROOT / "docs"} and page.name not in NOT_RUN
]


def test_there_is_something_to_test() -> None:
    assert len(WITH_CODE) > 100
    assert {"README.md", "index.md", "run.md", "coming-from.md"} <= {page.name for page in RUN}


@pytest.mark.parametrize("page", [p for p in WITH_CODE if p.name[:5] != "FL000"], ids=name)
def test_blocks_can_be_read(page: Path) -> None:
    for block in blocks(page):
        ast.parse(block, name(page))
        assert "FL000" not in [finding.code for finding in read_text(block, "block.py")]


@pytest.mark.parametrize("page", [p for p in WITH_CODE if p not in RULES], ids=name)
def test_what_we_show_as_right_is_right(page: Path) -> None:
    """Outside of the rules' pages code is advice. Fragments are read with the imports that everybody leaves out."""
    for block in blocks(page):
        found = corrected(block, "block.py").findings
        assert [f"{f.code}: {f.message}" for f in found if f.severity.value == "error"] == []


@pytest.mark.parametrize("page", RULES, ids=name)
def test_a_rules_example_has_the_mistake_and_the_rest_has_not(page: Path) -> None:
    code = page.name[:5]
    text = page.read_text(encoding="utf-8")
    seen_by_reader = "seen by `fallline run`" not in text
    wrong, _, right = text.partition("## Use instead")
    for match in BLOCK.finditer(wrong):
        codes = [finding.code for finding in read_text(textwrap.dedent(match[2]), "block.py")]
        assert (code in codes) == seen_by_reader, codes
    for match in BLOCK.finditer(right):
        assert code not in [f.code for f in read_text(textwrap.dedent(match[2]), "block.py")]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=name)
def test_blocks_run(page: Path, tmp_path: Path) -> None:
    program = GIVEN + "\n".join(blocks(page))
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
