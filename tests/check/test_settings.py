"""`[tool.fallline]` and the command line over it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fallline.check.patterns import matches
from fallline.check.settings import Selection

WRONG = "import torch\n\nmodel = torch.nn.Linear(1, 1)\ny = model.forward(torch.ones(1))\n"


def configure(project: Path, body: str) -> None:
    (project / "pyproject.toml").write_text(f"[tool.fallline]\n{body}\n")


def codes(ran: tuple[int, str, str]) -> list[tuple[str, str]]:
    return [(f["path"], f["code"]) for f in json.loads(ran[1])]


@pytest.mark.parametrize(
    ("select", "ignore", "wanted"),
    [
        ((), (), True),
        (("FL8",), (), True),
        (("FL1",), (), False),
        ((), ("FL8",), False),
        (("FL803",), ("FL8",), True),
        (("FL8",), ("FL803",), False),
        (("ALL",), ("ALL",), False),
        (("forward-called",), ("FL8",), True),
    ],
)
def test_selection(select: tuple[str, ...], ignore: tuple[str, ...], wanted: bool) -> None:
    assert Selection(select, ignore).wants("FL803", "forward-called") is wanted


@pytest.mark.parametrize(
    ("path", "pattern", "hit"),
    [
        ("tests/a.py", "tests", True),
        ("tests/a.py", "tests/", True),
        ("tests/a.py", "tests/*", True),
        ("tests/deep/a.py", "tests/*", True),
        ("src/tests/a.py", "tests", True),
        ("src/tests/a.py", "tests/*", False),
        ("a.py", "**/a.py", True),
        ("x/y/a.py", "**/a.py", True),
        ("x/y/b_pb2.py", "*_pb2.py", True),
        ("third_party/x/a.py", "third_party/x", True),
        ("mytests.py", "tests", False),
        ("a.py", "./a.py", True),
    ],
)
def test_patterns(tmp_path: Path, path: str, pattern: str, hit: bool) -> None:
    assert matches(str(tmp_path / path), pattern, str(tmp_path)) is hit


def test_the_nearest_pyproject_with_the_table_counts(project: Path, fallline: Callable) -> None:
    configure(project, 'ignore = ["FL8"]')
    inner = project / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").write_text("[tool.other]\n")
    (inner / "a.py").write_text(WRONG)
    assert fallline("check", "inner/a.py").status == 0


def test_select_on_the_command_line_replaces_that_of_the_file(
    project: Path, fallline: Callable
) -> None:
    configure(project, 'select = ["FL1"]')
    (project / "a.py").write_text(WRONG)
    assert fallline("check", "a.py").status == 0
    assert fallline("check", "a.py", "--select", "FL8").status == 1


def test_what_the_command_line_names_outright_is_told(project: Path, fallline: Callable) -> None:
    configure(project, 'ignore = ["FL803"]')
    (project / "a.py").write_text(WRONG)
    assert fallline("check", "a.py", "--select", "FL8").status == 0
    assert fallline("check", "a.py", "--select", "FL803").status == 1


def test_per_file_ignores(project: Path, fallline: Callable) -> None:
    configure(project, 'per-file-ignores = { "tests/*" = ["FL8"], "b.py" = ["forward-called"] }')
    (project / "tests").mkdir()
    for name in ("a.py", "b.py", "tests/c.py"):
        (project / name).write_text(WRONG)
    assert codes(fallline("check", ".", "--output-format", "json")) == [("a.py", "FL803")]


def test_exclude_and_force_exclude(project: Path, fallline: Callable) -> None:
    configure(project, 'exclude = ["vendor", "gen_*.py"]')
    (project / "vendor").mkdir()
    for name in ("a.py", "gen_b.py", "vendor/c.py"):
        (project / name).write_text(WRONG)
    assert codes(fallline("check", ".", "--output-format", "json")) == [("a.py", "FL803")]
    assert fallline("check", "vendor/c.py").status == 1, "named outright"
    assert fallline("check", "vendor/c.py", "gen_b.py", "--force-exclude").status == 0


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("selekt = []", "selekt"),
        ('select = "FL1"', "select"),
        ('select = ["FL999"]', "FL999"),
        ("exclude = [1]", "exclude"),
        ('per-file-ignores = ["FL1"]', "per-file-ignores"),
        ('per-file-ignores = { "a" = ["NOPE"] }', "NOPE"),
        ("baseline = 3", "baseline"),
        ("select = [", "TOML"),
    ],
)
def test_a_mistake_in_the_configuration_is_2_and_named(
    project: Path, fallline: Callable, body: str, named: str
) -> None:
    configure(project, body)
    (project / "a.py").write_text(WRONG)
    ran = fallline("check", "a.py")
    assert ran.status == 2
    assert named in ran.err and "pyproject.toml" in ran.err and "Traceback" not in ran.err


def test_baseline_and_cache_dir_count_from_the_file(project: Path, fallline: Callable) -> None:
    configure(project, 'baseline = "known.json"\ncache-dir = "cached"')
    (project / "pkg").mkdir()
    (project / "pkg" / "a.py").write_text(WRONG)
    assert fallline("check", "pkg", "--write-baseline", "known.json").status == 0
    assert fallline("check", "pkg").status == 0
    assert (project / "cached").is_dir()
    (project / "known.json").unlink()
    assert fallline("check", "pkg").status == 2
