"""Whole training scripts: what is wrong is in a trailing comment, and nothing else may be reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fallline.verdict.project import read_paths

SCRIPTS = Path(__file__).parent.parent / "scripts"
EXPECTED = re.compile(r"#\s*(FL\d{3}(?:\s*,\s*FL\d{3})*)\s*(?:\\n\"|$)")


def expected(path: Path) -> set[tuple[str, str]]:
    """(code, the line's own text) of every marked line: text, because a notebook has no lines of its own."""
    found = set()
    for line in path.read_text().splitlines():
        marked = EXPECTED.search(line)
        if marked:
            found |= {(code.strip(), _bare(line)) for code in marked[1].split(",")}
    return found


def _bare(line: str) -> str:
    return re.sub(r'^[\s"]+|\s*#.*$', "", line)


def reported(paths: list[Path]) -> set[tuple[str, str]]:
    readings = read_paths([str(p) for p in paths], roots=[str(paths[0].parent)])
    assert not [f for r in readings for f in r.failures]
    found = set()
    for reading in readings:
        for finding in reading.findings:
            if finding.severity != "info":
                found.add((finding.code, _line(finding.at.path, finding.at.line)))
    return found


def _line(path: str, number: int) -> str:
    from fallline.syntax import Source

    return _bare(Source.from_bytes(path, Path(path).read_bytes()).lines[number - 1])


@pytest.mark.parametrize(
    "path", sorted(p for p in SCRIPTS.iterdir() if p.is_file()), ids=lambda p: p.name
)
def test_script(path: Path) -> None:
    assert reported([path]) == expected(path)


@pytest.mark.parametrize(
    "folder", sorted(p for p in SCRIPTS.iterdir() if any(p.glob("*.py"))), ids=lambda p: p.name
)
def test_project(folder: Path) -> None:
    files = sorted(folder.rglob("*.py"))
    assert reported(files) == set().union(*(expected(f) for f in files))
