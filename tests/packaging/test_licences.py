"""docs/licences.md: every package that we name, with the licence that the package itself declares."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata

import pytest

from environments import ROOT

PAGE = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| \S+ \| (?P<package>\S+) \| (?P<licence>.+) \|$", re.MULTILINE)
ROWS = {m["package"]: m["licence"] for m in ROW.finditer(PAGE) if m["package"] != "package"}


def named() -> set[str]:
    """Every package in pyproject.toml."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lists = [
        table["build-system"]["requires"],
        *table["project"]["optional-dependencies"].values(),
        *table["dependency-groups"].values(),
    ]
    return {
        re.match(r"[\w.-]+", requirement)[0]  # type: ignore[index]
        for requirements in lists
        for requirement in requirements
        if isinstance(requirement, str)
    }


def test_every_package_is_listed_and_no_other() -> None:
    assert set(ROWS) == named()


@pytest.mark.parametrize("package", sorted(ROWS))
def test_the_licence_is_the_packages_own(package: str) -> None:
    try:
        about = metadata(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed here")  # the docs and long groups
    declared = about["License-Expression"]
    if declared:
        assert ROWS[package] == declared
        return
    words = " ".join([about["License"] or "", *(about.get_all("Classifier") or [])])
    family = ROWS[package].partition("-")[0]
    assert {"Apache": "Apache", "MIT": "MIT", "MPL": "Mozilla", "BSD": "BSD"}[family] in words


def test_no_file_of_ours_carries_the_notice_of_another() -> None:
    foreign = re.compile(r"copyright \(c\)|licensed under|all rights reserved", re.IGNORECASE)
    for path in (ROOT / "src").rglob("*"):
        if path.is_file() and path.suffix in {".py", ".toml", ".md", ".json"}:
            assert not foreign.search(path.read_text(encoding="utf-8")), path
