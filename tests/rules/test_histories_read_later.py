"""Mistakes in the shape of repairs that were missed when they were first read, and right code that looks like them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fallline.verdict.reading import read_text

sys.path.insert(0, str(Path(__file__).parent))
import read_later_more
import read_later_wrong
from read_later_right import RIGHT

WRONG = read_later_wrong.WRONG | read_later_more.WRONG
NEW = frozenset(code for code, _ in WRONG.values())


@pytest.mark.parametrize("name", WRONG)
def test_it_is_found(name: str) -> None:
    code, text = WRONG[name]
    line = next(i for i, row in enumerate(text.splitlines(), 1) if row.endswith("# here"))
    assert line in [f.at.line for f in read_text(text) if f.code == code]


@pytest.mark.parametrize("name", RIGHT)
def test_what_looks_like_it_is_silent(name: str) -> None:
    found = [(f.code, f.at.line, f.severity) for f in read_text(RIGHT[name]) if f.code in NEW]
    assert [f for f in found if f[2].value != "info" or f[0] == "FL707"] == []
