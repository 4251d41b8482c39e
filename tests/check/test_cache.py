"""The cache never changes an answer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fallline.check.cache import Cache
from fallline.reader import Reading, read_paths

WRONG = "import torch\n\nmodel = torch.nn.Linear(1, 1)\ny = model.forward(torch.ones(1))\n"
RIGHT = WRONG.replace("model.forward(", "model(")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were really read."""
    seen: list[str] = []

    def spy(paths: list[str], **options: object) -> list[Reading]:
        seen.extend(paths)
        return read_paths(paths, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("fallline.reader.read_paths", spy)
    return seen


def test_an_unchanged_file_is_not_read_again_and_says_the_same(
    project: Path, fallline: Callable, read: list[str]
) -> None:
    (project / "a.py").write_text(WRONG)
    first = fallline("check", ".", "--output-format", "json")
    second = fallline("check", ".", "--output-format", "json")
    assert first == second
    assert read == ["a.py"]


def test_a_changed_file_is_read_again(project: Path, fallline: Callable, read: list[str]) -> None:
    (project / "a.py").write_text(WRONG)
    assert fallline("check", ".").status == 1
    (project / "a.py").write_text(RIGHT)
    assert fallline("check", ".").status == 0
    (project / "a.py").write_text(WRONG)
    assert fallline("check", ".").status == 1
    assert read == ["a.py"] * 3


def test_a_new_neighbour_can_give_an_import_a_meaning(
    project: Path, fallline: Callable, read: list[str]
) -> None:
    (project / "a.py").write_text(WRONG)
    fallline("check", "a.py")
    (project / "helper.py").write_text("")
    fallline("check", "a.py")
    assert read == ["a.py", "a.py"]


def test_what_was_looked_into_counts(project: Path) -> None:
    (project / "a.py").write_text(WRONG)
    (project / "helper.py").write_text("one")
    cache = Cache(".cache", str(project))
    cache.put(Reading("a.py", [], frozenset({"helper.py"})))
    cache.save()
    assert Cache(".cache", str(project)).get("a.py") is not None
    (project / "helper.py").write_text("two")
    assert Cache(".cache", str(project)).get("a.py") is None


def test_no_cache_reads_and_leaves_nothing(
    project: Path, fallline: Callable, read: list[str]
) -> None:
    (project / "a.py").write_text(WRONG)
    for _ in range(2):
        fallline("check", ".", "--no-cache")
    assert read == ["a.py", "a.py"]
    assert os.listdir(project) == ["a.py"]


@pytest.mark.parametrize("damage", [b"", b"\0\xff", b"{", b"truncate", b"flip"])
def test_a_damaged_cache_costs_time_only(
    project: Path, fallline: Callable, read: list[str], damage: bytes
) -> None:
    (project / "a.py").write_text(WRONG)
    fallline("check", ".")
    file = project / ".fallline_cache" / "readings.json"
    whole = file.read_bytes()
    flipped = whole.replace(b"FL803", b"FL804")
    file.write_bytes({b"truncate": whole[: len(whole) // 2], b"flip": flipped}.get(damage, damage))
    ran = fallline("check", ".", "--output-format", "json")
    assert [f["code"] for f in json.loads(ran.out)] == ["FL803"]
    assert read == ["a.py", "a.py"]


def test_a_folder_that_cannot_be_written_costs_time_only(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG)
    (project / ".fallline_cache").write_text("in the way")
    assert fallline("check", ".").status == 1


def test_the_cache_keeps_itself_out_of_version_control(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG)
    fallline("check", ".")
    assert (project / ".fallline_cache" / ".gitignore").read_text() == "*\n"


def test_several_at_once(project: Path) -> None:
    (project / "a.py").write_text(WRONG)

    def one(number: int) -> None:
        cache = Cache(".cache", str(project))
        cache.put(Reading("a.py", []))
        cache.save()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(40)))
    assert Cache(".cache", str(project)).get("a.py") is not None
    assert [name for name in os.listdir(".cache") if name.endswith(".tmp")] == []


def test_selection_is_not_in_the_cache(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG)
    assert fallline("check", ".", "--select", "FL1").status == 0
    assert fallline("check", ".").status == 1
