"""A project's settings name the cache, and a project can be anybody's: nothing but the cache's own files is ever touched."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fallline.check.cache import Cache, _hash

WRONG = "import torch\n\nmodel = torch.nn.Linear(1, 1)\ny = model.forward(torch.ones(1))\n"


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def precious(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the user's with files that look like ours."""
    home = tmp_path_factory.mktemp("user") / "home"
    home.mkdir()
    for n in range(40):
        (home / f"readings-{n:012x}.json").write_text(f"diary {n}")
        (home / f"readings-{n}.txt").write_text("the gas meter")
    (home / "notes.md").write_text("mine")
    return home


@pytest.mark.parametrize("how", ["absolute", "relative", "link", "link in between"])
def test_a_folder_of_the_users_is_left_alone(
    project: Path, fallline: Callable, precious: Path, how: str
) -> None:
    (project / "a.py").write_text(WRONG)
    chosen = ".fallline_cache"
    if how == "absolute":
        chosen = str(precious)
    elif how == "relative":
        chosen = os.path.relpath(precious, project)
    elif how == "link":
        (project / ".fallline_cache").symlink_to(precious)
    else:
        (project / "sub").symlink_to(precious.parent)
        chosen = "sub/home"
    (project / "pyproject.toml").write_text(f"[tool.fallline]\ncache-dir = {json.dumps(chosen)}\n")
    before = snapshot(precious)
    for _ in range(3):
        assert fallline("check", ".").status == 1
    assert snapshot(precious) == before


def test_a_link_out_of_the_project_makes_no_folder_there(
    project: Path, fallline: Callable, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (project / "a.py").write_text(WRONG)
    (project / ".fallline_cache").symlink_to(elsewhere)
    assert fallline("check", ".").status == 1
    assert os.listdir(elsewhere) == []


def test_links_inside_the_cache_are_not_followed(
    project: Path, fallline: Callable, tmp_path: Path
) -> None:
    (project / "a.py").write_text(WRONG)
    fallline("check", ".")
    (made,) = (project / ".fallline_cache").glob("readings-*.json")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    made.unlink()
    made.symlink_to(victim)
    assert fallline("check", ".").status == 1
    assert victim.read_text() == "precious" and not made.is_symlink()


def test_of_its_own_files_the_oldest_go_and_only_those(project: Path, fallline: Callable) -> None:
    cache = project / ".fallline_cache"
    for n in range(20):
        (project / f"f{n}.py").write_text(WRONG)
        fallline("check", f"f{n}.py")
    (cache / "readings-of-the-gas-meter.json").write_text("mine")
    (cache / "readings-0123456789ab.json").mkdir()
    (project / "last.py").write_text(WRONG)
    fallline("check", "last.py")
    assert (cache / "readings-of-the-gas-meter.json").read_text() == "mine"
    assert (cache / "readings-0123456789ab.json").is_dir()
    assert len([p for p in cache.glob("readings-????????????.json") if p.is_file()]) == 16


def test_a_cache_from_before_there_was_a_mark_is_used(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG)
    fallline("check", ".")
    (project / ".fallline_cache/CACHEDIR.TAG").unlink()
    assert fallline("check", ".").status == 1
    (project / "b.py").write_text(WRONG)
    fallline("check", ".")
    assert (project / ".fallline_cache/CACHEDIR.TAG").exists()


BODIES = (
    b"", b"null", b"[]", b"1", b'"x"', b"{}", b'{"files": 1, "readings": 2}', b"[" * 100_000, b"9" * 5_000,
    b'{"files": {"a": [1, [2]]}, "readings": {}}', b'{"files": {}, "readings": {"a": {}}}', b"\xff\xfe", b"1e400",
)  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=[str(n) for n in range(len(BODIES))])
@pytest.mark.parametrize("sealed", [True, False], ids=["with its hash", "without"])
def test_a_forged_body_costs_time_and_changes_nothing(
    project: Path, fallline: Callable, body: bytes, sealed: bool
) -> None:
    (project / "a.py").write_text(WRONG)
    said = fallline("check", ".", "--output-format", "json")
    (made,) = (project / ".fallline_cache").glob("readings-*.json")
    head = made.read_bytes().partition(b"\n")[0].rpartition(b" ")[0]
    made.write_bytes(head + b" " + (_hash(body).encode() if sealed else b"x") + b"\n" + body)
    assert fallline("check", ".", "--output-format", "json") == said


def test_forged_fields_cost_time_and_change_nothing(
    project: Path, fallline: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every leaf of a real body in turn becomes something that it is not."""
    (project / "a.py").write_text(WRONG)
    said = fallline("check", ".", "--output-format", "json")
    (made,) = (project / ".fallline_cache").glob("readings-*.json")
    head, _, body = made.read_bytes().partition(b"\n")
    book = json.loads(body)
    spots = list(places(book))
    assert len(spots) > 20
    for way in spots:
        for wrong in (None, [], {}, "x" * 10, -1, 1e400):
            forged = json.loads(body)
            put(forged, way, wrong)
            text = json.dumps(forged).encode()
            made.write_bytes(head.rpartition(b" ")[0] + b" " + _hash(text).encode() + b"\n" + text)
            ran = fallline("check", ".", "--output-format", "json")
            assert ran.status in (0, 1) and "mistake in fallline" not in ran.err, (way, wrong)
    monkeypatch.setattr(Cache, "readings", lambda self: {})
    assert fallline("check", ".", "--output-format", "json") == said


def places(value: object, way: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return ([way] if way else []) + [p for key, v in inside for p in places(v, (*way, key))]


def put(value: object, way: tuple[object, ...], new: object) -> None:
    for key in way[:-1]:
        value = value[key]  # type: ignore[index]
    value[way[-1]] = new  # type: ignore[index]


def test_a_fix_is_never_taken_from_the_cache(project: Path, fallline: Callable) -> None:
    """A cache that came with the project would otherwise write what it likes."""
    (project / "a.py").write_text(WRONG)
    fallline("check", ".")
    (made,) = (project / ".fallline_cache").glob("readings-*.json")
    head, _, body = made.read_bytes().partition(b"\n")
    forged = body.replace(b'"content":"', b"\"content\":\"__import__('os').system('rm -rf ~')#")
    assert forged != body
    made.write_bytes(head.rpartition(b" ")[0] + b" " + _hash(forged).encode() + b"\n" + forged)
    fallline("check", ".", "--fix")
    assert "rm -rf" not in (project / "a.py").read_text()
    assert "model(torch.ones(1))" in (project / "a.py").read_text()
