"""Which files are read, whatever the file system looks like."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fallline.check.discovery import discover
from fallline.check.settings import Settings

WRONG = "import torch\n\nmodel = torch.nn.Linear(1, 1)\ny = model.forward(torch.ones(1))\n"


def found(*paths: str) -> list[str]:
    return discover(paths, Settings())[0]


def make(project: Path, *names: str) -> None:
    for name in names:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")


def test_always_the_same_order_each_file_once(project: Path) -> None:
    make(project, "b.py", "a.py", "sub/c.py", "sub/a.ipynb", "notes.txt")
    assert found(".", "a.py", "sub") == ["a.py", "b.py", "sub/a.ipynb", "sub/c.py"]
    assert found("sub", ".") == ["sub/a.ipynb", "sub/c.py", "a.py", "b.py"]


def test_other_peoples_code_and_hidden_folders_are_left_out(project: Path) -> None:
    make(
        project,
        ".git/a.py",
        ".venv/a.py",
        "venv/a.py",
        "node_modules/a.py",
        "build/a.py",
        "__pycache__/a.py",
    )
    make(
        project,
        ".hidden.py",
        "my_env/pyvenv.cfg",
        "my_env/lib/a.py",
        "pkg.egg-info/a.py",
        "env/game.py",
    )
    assert found(".") == ["env/game.py"]


def test_a_folder_named_outright_is_read(project: Path) -> None:
    make(project, "build/a.py")
    assert found("build") == ["build/a.py"]


def test_a_file_named_outright_is_read_whatever_its_name(project: Path) -> None:
    make(project, "script")
    assert found("script") == ["script"]


def test_links_that_loop_are_harmless(project: Path, fallline: Callable) -> None:
    make(project, "pkg/a.py")
    (project / "pkg" / "loop").symlink_to(project / "pkg", target_is_directory=True)
    (project / "pkg" / "self.py").symlink_to("self.py")
    (project / "pkg" / "dangling.py").symlink_to("nowhere.py")
    (project / "pkg" / "link.py").symlink_to("a.py")
    assert found(".") == ["pkg/a.py", "pkg/dangling.py", "pkg/link.py", "pkg/self.py"]
    ran = fallline("check", ".", "--output-format", "json")
    assert ran.status == 1
    assert [(f["code"], f["path"]) for f in json.loads(ran.out)] == [
        ("FL000", "pkg/dangling.py"),
        ("FL000", "pkg/self.py"),
    ]


def test_deeply_nested_folders(project: Path) -> None:
    depth = 400
    folder = project.joinpath(*["d"] * depth)
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("")
    assert found(".") == ["/".join(["d"] * depth + ["a.py"])]


def test_a_folder_that_vanishes_or_is_closed_is_told_and_the_rest_is_read(
    project: Path, fallline: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(project, "gone/a.py", "z/b.py")
    (project / "z" / "b.py").write_text(WRONG)
    scandir = os.scandir

    def vanishing(path: str) -> object:
        if str(path).endswith("gone"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    ran = fallline("check", ".", "--output-format", "json")
    assert ran.status == 1
    assert [(f["code"], f["path"]) for f in json.loads(ran.out)] == [
        ("FL000", "gone"),
        ("FL803", "z/b.py"),
    ]


def test_a_pipe_named_py_does_not_hang(project: Path, fallline: Callable) -> None:
    os.mkfifo(project / "pipe.py")
    ran = fallline("check", "pipe.py", "--output-format", "concise")
    assert ran.status == 1 and "pipe.py" in ran.out
