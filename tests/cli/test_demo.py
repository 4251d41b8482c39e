"""`fallline demo`: from four findings to none, in front of the reader's eyes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def test_the_demo_finds_explains_fixes_and_is_clean(project: Path, fallline: Callable) -> None:
    ran = fallline("demo")
    assert ran.status == 0
    story = ["FL201 [*]", "Found 4 errors", "◄ here", "+++ train.py", "Nothing found in 1 file."]
    places = [ran.out.index(part) for part in story]
    assert places == sorted(places)
    assert os.getcwd() == str(project) and os.listdir(project) == []
