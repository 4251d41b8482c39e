"""The cache never changes an answer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fallline.check.cache import Cache
from fallline.verdict.reading import Reading, read_data

WRONG = "import torch\n\nmodel = torch.nn.Linear(1, 1)\ny = model.forward(torch.ones(1))\n"
RIGHT = WRONG.replace("model.forward(", "model(")
TRAIN = """\
import torch
from helper import update

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = torch.nn.functional.mse_loss(model(x), y)
    update(loss, model, optimizer)
"""
HELPER = """\
import torch


def update(loss, model, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
HELPER_RIGHT = """\
import torch


def update(loss, model, optimizer):
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""
SCRIPT = """\
import torch


def main():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were really read."""
    seen: list[str] = []

    def spy(path: str, *args: Any, **options: Any) -> Reading:
        seen.append(path)
        return read_data(path, *args, **options)

    monkeypatch.setattr("fallline.verdict.project.read_data", spy)
    # the tool's own files may change while its tests run; the cache is right to notice
    monkeypatch.setattr("fallline.check.cache._tool_signature", lambda: "fallline-under-test")
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


def test_a_new_file_can_give_an_import_a_meaning(
    project: Path, fallline: Callable, read: list[str]
) -> None:
    (project / "train.py").write_text(TRAIN)
    (project / "other.py").write_text(WRONG)
    fallline("check", "train.py", "other.py")
    (project / "helper.py").write_text(HELPER)
    assert fallline("check", "train.py", "other.py").status == 1
    assert read == ["train.py", "other.py", "train.py"]


def test_what_was_not_there_counts(project: Path, fallline: Callable, read: list[str]) -> None:
    (project / "train.py").write_text(TRAIN)
    (project / "helper.py").write_text("import torch\n")
    fallline("check", "train.py")
    (project / "helper.py").write_text(HELPER)
    fallline("check", "train.py")
    assert read == ["train.py", "train.py"]


def test_what_is_behind_the_file_that_was_looked_into_counts(
    project: Path, fallline: Callable
) -> None:
    (project / "train.py").write_text(TRAIN)
    (project / "helper.py").write_text("from deep import update\n")
    (project / "deep.py").write_text(HELPER)
    assert fallline("check", ".").status == 1
    (project / "deep.py").write_text(HELPER_RIGHT)
    assert fallline("check", ".") == fallline("check", ".", "--no-cache")


def test_a_change_costs_only_what_rests_on_it(
    project: Path, fallline: Callable, read: list[str]
) -> None:
    """Scripts that each call a `main` of their own know nothing of each other."""
    for name in "abc":
        (project / f"{name}.py").write_text(SCRIPT)
    fallline("check", ".")
    read.clear()
    (project / "b.py").write_text(SCRIPT + "# a comment\n")
    assert fallline("check", ".") == fallline("check", ".", "--no-cache")
    assert read == ["b.py", "a.py", "b.py", "c.py"]


def test_a_new_file_costs_only_what_rests_on_it(
    project: Path, fallline: Callable, read: list[str]
) -> None:
    (project / "a.py").write_text(WRONG)
    fallline("check", ".")
    (project / "b.py").write_text(WRONG)
    fallline("check", ".")
    assert read == ["a.py", "b.py"]


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
    (file,) = (project / ".fallline_cache").glob("readings-*.json")
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
        Cache(".cache", str(project), ["a.py"]).save([Reading("a.py", [])])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(40)))
    assert list(Cache(".cache", str(project), ["a.py"]).readings()) == ["a.py"]
    assert [name for name in os.listdir(".cache") if name.endswith(".tmp")] == []


def test_selection_is_not_in_the_cache(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG)
    assert fallline("check", ".", "--select", "FL1").status == 0
    assert fallline("check", ".").status == 1


def test_files_that_call_each_other_are_read_again_together(
    project: Path, fallline: Callable, read: list[str]
) -> None:
    """Whatever is changed, a check with a cache says what one without it says."""

    def agree() -> list[tuple[str, str, int]]:
        with_cache = fallline("check", ".", "--output-format", "json")
        without = fallline("check", ".", "--output-format", "json", "--no-cache")
        assert with_cache == without
        return [(f["code"], f["path"], f["line"]) for f in json.loads(without.out)]

    (project / "train.py").write_text(TRAIN)
    (project / "helper.py").write_text(HELPER)
    assert ("FL101", "helper.py", 8) in agree()
    (project / "helper.py").write_text(HELPER_RIGHT)
    assert agree() == []
    (project / "train.py").write_text(
        TRAIN.replace("    update(", "    loss.backward()\n    update(")
    )
    agree()
    (project / "helper.py").write_text(HELPER)
    (project / "train.py").write_text("import torch\n")
    agree()


def test_another_set_of_files_is_another_matter(project: Path, fallline: Callable) -> None:
    (project / "train.py").write_text(TRAIN)
    (project / "helper.py").write_text(HELPER)
    for paths in (["."], ["helper.py"], ["train.py"], ["."]):
        assert fallline("check", *paths) == fallline("check", *paths, "--no-cache")


def test_only_the_last_sets_are_kept(project: Path) -> None:
    (project / "a.py").write_text(WRONG)
    for number in range(20):
        cache = Cache(".cache", str(project), ["a.py", f"{number}.py"])
        cache.save([Reading("a.py", [])])
    assert len(list((project / ".cache").glob("readings-*"))) == 16
