"""What a user's machine does: installs from the package index, one environment for each extra. `make test-long`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from environments import ROOT, Environment, build

pytestmark = pytest.mark.long
EXAMPLE = ROOT / "examples" / "rnn"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def environment(folder: Path, wheel: Path, extra: str = "") -> Environment:
    made = Environment.empty(folder / "env")
    wanted = f"fallline[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    made.install("-c", ROOT / "constraints.txt", wanted)
    return made


def test_no_extra(wheel: Path, tmp_path: Path) -> None:
    bare = environment(tmp_path, wheel)
    assert bare.installed() == {"fallline"}
    ran = bare.fallline("check", str(EXAMPLE / "broken.py"), cwd=tmp_path)
    assert ran.returncode == 1 and "FL101" in ran.stdout


def test_torch(wheel: Path, tmp_path: Path) -> None:
    made = environment(tmp_path, wheel, "torch")
    ran = made.fallline(
        "run", "--out", "run", str(EXAMPLE / "broken.py"), "--updates", "50", cwd=tmp_path
    )
    assert ran.returncode == 0 and "FL101" in ran.stderr, ran.stderr
    assert made.fallline("report", "run", cwd=tmp_path).returncode == 0
    assert (tmp_path / "run" / "report.html").is_file()
    ran = made.fallline("prove", "FL101", cwd=tmp_path)
    assert ran.returncode == 0 and "PROVED" in ran.stdout, ran.stderr


def test_mcp(wheel: Path, tmp_path: Path) -> None:
    made = environment(tmp_path, wheel, "mcp")
    assert "mcp" in made.installed() and "torch" not in made.installed()
    ran = made.fallline("mcp", cwd=tmp_path)  # its input is empty: it starts, and ends
    assert ran.returncode == 0 and "Traceback" not in ran.stderr, ran.stderr


def test_lsp(wheel: Path, tmp_path: Path) -> None:
    made = environment(tmp_path, wheel, "lsp")
    assert "pygls" in made.installed() and "torch" not in made.installed()
    ran = made.fallline("lsp", cwd=tmp_path)
    assert ran.returncode == 0 and "Traceback" not in ran.stderr, ran.stderr


def test_rich(wheel: Path, tmp_path: Path) -> None:
    made = environment(tmp_path, wheel, "rich")
    assert "rich" in made.installed()
    assert "clip-after-step" in made.fallline("rule", "FL101", cwd=tmp_path).stdout


def test_the_sdist_builds_and_installs(tmp_path: Path) -> None:
    sdist = build("sdist", tmp_path / "dist")
    made = Environment.empty(tmp_path / "env")
    made.install(sdist)  # builds a wheel of it, with a build backend of its own
    ran = made.fallline("check", str(EXAMPLE / "repaired.py"), cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("tool", ["pre-commit", "prek"])
def test_the_hook_refuses_a_commit(tool: str, tmp_path: Path) -> None:
    """The real tool, a fresh repository, and the hook from a clone of ours as it was last committed."""
    program = str(Path(sys.executable).parent / tool)

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return run("git", "-c", "user.name=a", "-c", "user.email=a@example.com", *words)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        import os

        home = {"PRE_COMMIT_HOME": str(tmp_path / "home"), "PREK_HOME": str(tmp_path / "home")}
        return subprocess.run(
            words,
            cwd=work,
            env={**os.environ, **home},
            capture_output=True,
            text=True,
            check=False,
        )

    work = tmp_path / "work"
    work.mkdir()
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (work / ".pre-commit-config.yaml").write_text(
        f"repos:\n  - repo: {ROOT}\n    rev: {head.stdout.strip()}\n    hooks:\n      - id: fallline-check\n"
    )
    shutil.copy(EXAMPLE / "broken.py", work / "train.py")
    git("init", "-q")
    git("add", ".")
    installed = run(program, "install")
    assert installed.returncode == 0, installed.stderr
    refused = git("commit", "-m", "a mistake")
    assert refused.returncode != 0 and "FL101" in refused.stdout + refused.stderr

    shutil.copy(EXAMPLE / "repaired.py", work / "train.py")
    git("add", ".")
    accepted = git("commit", "-m", "repaired")
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
