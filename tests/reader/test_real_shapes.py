"""Shapes of real training code: the mistake is found as strangers write it, and its right twin is silent.

`shapes/*.txt` hold the programs. `# case: CODE title` begins one, `# file: NAME` a further file of it. A line `wrong  #> right`
is `wrong` in the program with the mistake and `right` in its twin.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fallline.finding import Finding
from fallline.verdict.project import read_paths

SHAPES = Path(__file__).parent / "shapes"


@dataclass(frozen=True)
class Shape:
    """One program in both forms: file name → text."""

    code: str
    title: str
    lines: tuple[str, ...]

    def files(self, right: bool) -> dict[str, str]:
        found: dict[str, list[str]] = {}
        name = "train.py"
        for line in self.lines:
            if line.startswith("# file: "):
                name = line.removeprefix("# file: ").strip()
                continue
            found.setdefault(name, []).append(_right(line) if right else line.partition("  #>")[0])
        return {name: "\n".join(text) + "\n" for name, text in found.items()}


def _right(line: str) -> str:
    wrong, mark, right = line.partition("  #>")
    if not mark:
        return line
    return wrong[: len(wrong) - len(wrong.lstrip())] + right.strip()


def shapes() -> list[Shape]:
    found: list[Shape] = []
    for path in sorted(SHAPES.glob("*.txt")):
        for part in path.read_text(encoding="utf-8").split("# case: ")[1:]:
            head, *lines = part.rstrip().split("\n")
            code, _, title = head.partition(" ")
            found.append(Shape(code, f"{path.stem}: {title}", tuple(lines)))
    return found


def read(files: dict[str, str], folder: Path) -> list[Finding]:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    readings = read_paths([str(folder / name) for name in files], roots=[str(folder)])
    assert not [failure for reading in readings for failure in reading.failures]
    return [finding for reading in readings for finding in reading.found]


@pytest.mark.parametrize("shape", shapes(), ids=lambda s: f"{s.code} {s.title}")
def test_the_mistake_is_found(shape: Shape, tmp_path: Path) -> None:
    assert shape.code in {finding.code for finding in read(shape.files(right=False), tmp_path)}


@pytest.mark.parametrize("shape", shapes(), ids=lambda s: f"{s.code} {s.title}")
def test_its_right_twin_is_silent(shape: Shape, tmp_path: Path) -> None:
    worst = min(
        f.severity.rank for f in read(shape.files(right=False), tmp_path) if f.code == shape.code
    )
    found = read(shape.files(right=True), tmp_path)
    said = [f for f in found if f.code == shape.code and f.severity.rank <= worst]
    assert said + [f for f in found if f.severity != "info"] == []
