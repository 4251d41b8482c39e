"""What a run deletes through an open folder: temporary files really, the user's own only as far as the run can see."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fallline.instruments.aside import Aside
from fallline.taps.patches import Patches

# as a module holds it that was imported before: `tempfile` does so from Python 3.12 on
_rmtree = shutil.rmtree


@contextmanager
def aside() -> Iterator[None]:
    folder, patches = tempfile.mkdtemp(prefix="tmp-fallline-aside-"), Patches()
    Aside(folder, patches)
    try:
        yield
    finally:
        patches.remove()
        shutil.rmtree(folder)


def test_a_temporary_folder_goes_away() -> None:
    folder = tempfile.mkdtemp()
    with aside():
        os.mkdir(f"{folder}/inner")
        for name in ("main.c", "inner/main.so"):
            Path(folder, name).write_text("compiled")
        _rmtree(folder)
    assert not os.path.lexists(folder)


def test_a_folder_of_the_user_stays(tmp_path: Path) -> None:
    (tmp_path / "results/old").mkdir(parents=True)
    for name in ("results/a.txt", "results/old/b.txt"):
        (tmp_path / name).write_text("kept")
    with aside():
        _rmtree(tmp_path / "results")
        assert not os.path.exists(tmp_path / "results")
        assert not os.path.exists(tmp_path / "results/old/b.txt")
    assert (tmp_path / "results/a.txt").read_text() == "kept"
    assert (tmp_path / "results/old/b.txt").read_text() == "kept"


def test_what_a_compiler_keeps_is_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles a library into its cache and loads it from there, which Python does not see."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with aside():
        os.makedirs(tmp_path / ".triton/cache")
        (tmp_path / ".triton/cache/utils.so").write_text("compiled")
        (tmp_path / "results.txt").write_text("not compiled")
    assert [path.name for path in tmp_path.rglob("*.*")] == [".triton", "utils.so"]
