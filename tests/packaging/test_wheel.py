"""The wheel in an empty environment, without one dependency: what needs nothing works, what needs an extra says which."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from environments import ROOT, Environment, build
from fallline import __version__

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment.empty(tmp_path_factory.mktemp("bare"))
    environment.install("--no-deps", "--no-index", wheel)
    return environment


def test_the_wheel_holds_our_own_files_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"fallline-{__version__}.dist-info/"
    ours = {name for name in names if name.startswith("fallline/")}
    assert names - ours == {
        info + name
        for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    assert {Path(name).suffix for name in ours} <= {
        ".py",
        ".toml",
        ".md",
        ".typed",
        ".json",
        ".bin",  # word vectors for `ask`, and
        ".LICENSE",  # where they come from
    }
    assert {
        "fallline/py.typed",
        "fallline/triage/playbooks/gradient-management.toml",
        "fallline/.agents/skills/fallline/SKILL.md",
        "fallline/rules/gradients/fl101_clip_after_step.py",
        "fallline/examples/rnn/broken.py",
    } <= ours


def test_it_needs_nothing(bare: Environment, tmp_path: Path) -> None:
    assert bare.installed() == {"fallline"}
    ran = bare.fallline("--version", cwd=tmp_path)
    assert ran.stdout == f"fallline {__version__}\n"

    script = (ROOT / "examples" / "rnn" / "broken.py").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    ran = bare.fallline("check", "train.py", "--output-format", "json", cwd=tmp_path)
    assert ran.returncode == 1 and [f["code"] for f in json.loads(ran.stdout)] == ["FL101"]
    ran = bare.fallline("check", "train.py", "--fix", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "clip-scaled" in bare.fallline("rule", "FL201", cwd=tmp_path).stdout
    ran = bare.fallline("ask", "my loss is nan after 100 steps", cwd=tmp_path)
    assert ran.returncode == 0 and "fallline run" in ran.stdout
    assert bare.fallline("skills", "skills", cwd=tmp_path).returncode == 0
    assert (tmp_path / "skills" / "fallline" / "SKILL.md").is_file()
    assert bare.fallline("demo", cwd=tmp_path).returncode == 0
    ran = bare.fallline("demo", "rnn", cwd=tmp_path)
    assert ran.returncode == 0 and "FL101" in ran.stdout and "install torch" in ran.stdout


def test_what_is_missing_is_named(bare: Environment, tmp_path: Path) -> None:
    for command, extra in (("mcp", "mcp"), ("lsp", "lsp"), ("measure memory train.py", "torch")):
        ran = bare.fallline(*command.split(), cwd=tmp_path)
        assert ran.returncode == 2, command
        assert f"pip install 'fallline[{extra}]'" in ran.stderr and "Traceback" not in ran.stderr
    (tmp_path / "train.py").write_text("print('no torch needed')\n")
    ran = bare.fallline("run", "train.py", cwd=tmp_path)
    assert ran.returncode == 0 and "there is no torch in this Python" in ran.stderr
