"""Mistakes of the kinds that were missed in repairs that nobody had read, and right code that looks like them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fallline.verdict.reading import read_text

sys.path.insert(0, str(Path(__file__).parent))
from not_read_wrong import RIGHT, WRONG

NEW = frozenset(code for code, _ in WRONG.values())


@pytest.mark.parametrize("name", WRONG)
def test_it_is_found(name: str) -> None:
    code, text = WRONG[name]
    line = next(i for i, row in enumerate(text.splitlines(), 1) if row.endswith("# here"))
    assert line in [f.at.line for f in read_text(text) if f.code == code]


@pytest.mark.parametrize("name", RIGHT)
def test_what_looks_like_it_is_silent(name: str) -> None:
    assert [(f.code, f.at.line) for f in read_text(RIGHT[name]) if f.code in NEW] == []
