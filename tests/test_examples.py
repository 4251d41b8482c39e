"""The examples: each broken script is found out by `check` and by `run`, each repaired one is clean under both and learns."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fallline.verdict.project import read_paths

HOME = Path(__file__).parent.parent / "examples"


@dataclass(frozen=True)
class Example:
    """What is expected. `measure` picks the number that shows learning from the script's last line about it."""

    name: str
    short: tuple[str, ...]  # arguments for a run of seconds
    check: tuple[str, ...]  # codes that the reader finds in the broken script
    run: tuple[str, ...]  # codes that the watcher finds
    measure: str
    learned: tuple[float, float]  # the repaired script's last number lies in here
    failed: tuple[float, float]  # the broken one's lies here


EXAMPLES = (
    Example(
        "char_language_model",
        ("--updates", "60"),
        ("FL104", "FL201"),
        ("FL104", "FL201"),
        r"loss ([\d.]+)",
        learned=(0.0, 0.8),
        failed=(2.5, 9.0),
    ),
    Example(
        "image_classifier",
        ("--epochs", "2"),
        ("FL401", "FL402", "FL606"),
        ("FL401", "FL606"),
        r"accuracy ([\d.]+)",
        learned=(0.9, 1.0),
        failed=(0.0, 0.85),
    ),
    Example(
        "rnn",
        ("--updates", "300"),
        ("FL101",),
        ("FL101",),
        r"loss ([\d.]+)",
        learned=(0.0, 0.15),
        failed=(0.16, 9.0),
    ),
    Example(
        "gan",
        ("--updates", "150"),
        ("FL601", "FL601"),
        ("FL620",),
        r"ring ([\d.]+)",
        learned=(0.0, 0.6),
        failed=(0.0, 2.0),  # the guard keeps the broken one alive: test_without_the_guard
    ),
    Example(
        "policy_gradient",
        ("--episodes", "60"),
        ("FL106", "FL602"),
        ("FL106",),
        r"balanced for ([\d.]+)",
        learned=(70.0, 200.0),
        failed=(0.0, 65.0),
    ),
)
EACH = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)


@EACH
def test_the_reader_finds_exactly_the_mistakes(example: Example) -> None:
    broken, repaired = (str(HOME / example.name / name) for name in ("broken.py", "repaired.py"))
    (reading,) = read_paths([broken])
    assert sorted(finding.code for finding in reading.findings) == sorted(example.check)
    (reading,) = read_paths([repaired])
    assert reading.findings == []


def watched(example: Example, name: str, folder: Path) -> tuple[list[str], list[float]]:
    """The codes that a watched run finds, and the numbers it prints on its way."""
    script = HOME / example.name / name
    ran = subprocess.run(
        [sys.executable, "-m", "fallline", "run", "--out", "run", str(script), *example.short],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    findings = json.loads((folder / "run" / "findings.json").read_text(encoding="utf-8"))
    numbers = [float(number) for number in re.findall(example.measure, ran.stdout)]
    return [finding["code"] for finding in findings], numbers


@pytest.mark.slow
@EACH
def test_the_watcher_finds_them_and_the_broken_script_learns_badly(
    example: Example, tmp_path: Path
) -> None:
    codes, numbers = watched(example, "broken.py", tmp_path)
    assert sorted(codes) == sorted(example.run)
    low, high = example.failed
    assert low <= numbers[-1] <= high


@pytest.mark.slow
@EACH
def test_the_repaired_script_is_clean_and_learns(example: Example, tmp_path: Path) -> None:
    codes, numbers = watched(example, "repaired.py", tmp_path)
    assert codes == []
    low, high = example.learned
    assert low <= numbers[-1] <= high
    assert numbers[0] != numbers[-1]


@pytest.mark.slow
def test_without_the_guard_the_broken_gan_is_lost() -> None:
    script = HOME / "gan" / "broken.py"
    ran = subprocess.run(
        [sys.executable, str(script), "--updates", "150"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines()[-1].endswith("nan")


@EACH
def test_repaired_differs_in_little_more_than_the_mistakes(example: Example) -> None:
    """A reader of the docs compares the two: nothing else may distract."""
    broken, repaired = (
        (HOME / example.name / name).read_text(encoding="utf-8").splitlines()
        for name in ("broken.py", "repaired.py")
    )
    changed = len(set(repaired) - set(broken))
    assert 0 < changed <= 8
