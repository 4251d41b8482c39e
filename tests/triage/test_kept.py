"""What is derived from the claims is kept between questions; a damaged or unwritable cache costs time, never an answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fallline.triage.kept import kept

MADE = {"word": (1, 2.5), "other": (frozenset({"a"}), None)}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fallline"


def never() -> object:
    raise AssertionError("made again")


def test_it_is_made_once(cache: Path) -> None:
    assert kept("table", lambda: MADE) == MADE
    assert kept("table", never) == MADE
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 400])
def test_a_damaged_file_is_made_again(cache: Path, damage: bytes) -> None:
    kept("table", lambda: MADE)
    (file,) = cache.iterdir()
    file.write_bytes(damage + file.read_bytes()[len(damage) : -1])
    assert kept("table", lambda: "again") == "again"
    assert kept("table", never) == "again"


def test_others_files_stay(cache: Path) -> None:
    cache.mkdir()
    (cache / "mine.bin").write_bytes(b"mine")
    kept("table", lambda: MADE)
    assert (cache / "mine.bin").read_bytes() == b"mine"


def test_without_a_folder_it_still_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kept("table", lambda: MADE) == MADE


def test_a_question_unpacks_few_claims_and_loads_no_reader(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from fallline.triage.answer import answer\n"
        "from fallline.triage.claim import claims\n"
        "from fallline.triage.evidence import gather\n"
        "def ask(q): answer(q, gather(q))\n"
        "ask('my loss is NaN after 100 steps')\n"
        "claims.cache_clear()\n"  # the first question made the tables, and read all claims for that
        "ask('should I clip before or after unscale_?')\n"
        "late = {'fallline.syntax.module', 'fallline.proof.record', 'torch', 'difflib'} & sys.modules.keys()\n"
        "rules = [m for m in sys.modules if m.startswith('fallline.rules.')]\n"
        "print(len(claims()._made), len(claims()), sorted(late) + rules)\n"
    )
    given = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for _ in range(2):  # the first process reads everything, to make the tables
        done = subprocess.run(
            [sys.executable, "-c", program], env=given, capture_output=True, text=True, check=True
        )
    made, known, late = done.stdout.split(" ", 2)
    assert int(made) < int(known) / 5
    assert late.strip() == "[]"
