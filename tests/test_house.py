"""CONTRIBUTING.md is true: rooms import only from the rows below their own, and every file it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import fallline

PACKAGE = Path(fallline.__file__).parent
PAGE = (PACKAGE.parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
GLUE = {"__init__", "__main__", "_version"}


def storeys() -> list[list[str]]:
    """The rooms of each row, from the top."""
    table = PAGE.partition("| storey | rooms |")[2].partition("\n\n")[0].splitlines()[2:]
    return [re.findall(r"`(\w+)(?:/|\.py)`", row.split("|")[2]) for row in table]


def imported(file: Path) -> set[str]:
    """The rooms that a file imports, anywhere in it."""
    code = file.read_text(encoding="utf-8")
    found = re.findall(r"^\s*(?:from|import) fallline\.(\w+)", code, re.M)
    for names in re.findall(r"^\s*from fallline import (.+)$", code, re.M):
        found += [name for name in re.findall(r"\w+", names) if (PACKAGE / name).is_dir()]
    return set(found) - GLUE


def test_every_room_has_its_row() -> None:
    there = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    listed = [room for row in storeys() for room in row]
    assert sorted(listed) == sorted(there - GLUE)


def test_rooms_import_only_from_below() -> None:
    height = {room: -n for n, row in enumerate(storeys()) for room in row}
    upward = [
        f"{file.relative_to(PACKAGE)} imports {other}"
        for room in height
        for file in ((PACKAGE / room).rglob("*.py") if (PACKAGE / room).is_dir() else [PACKAGE / f"{room}.py"])
        for other in imported(file)
        if other != room and height[other] >= height[room]
    ]  # fmt: skip
    assert upward == []


def test_the_files_it_names_are_there() -> None:
    ways = PAGE.partition("## How one finding is made")[2].partition("## Where things are tested")[
        0
    ]
    named = re.findall(r"`((?:\w+/)+\w*(?:\.py)?|\w+\.py)`", ways)
    assert len(named) > 40
    # "`statements.py`, `expressions.py`" are beside the file named before them
    missing = [n for n in named if not (PACKAGE / n).exists() and not [*PACKAGE.glob(f"*/{n}")]]
    assert missing == []
