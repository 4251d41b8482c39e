"""Distributions built from this tree, and empty environments to put them into."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


def build(kind: str, into: Path) -> Path:
    """The wheel or sdist of this tree, with the build backend that is installed here."""
    ran = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(into), ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (made,) = into.iterdir()
    return made


@dataclass(frozen=True)
class Environment:
    """A virtual environment with nothing in it."""

    folder: Path

    @classmethod
    def empty(cls, folder: Path) -> Environment:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        return cls(folder)

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def install(self, *what: str | Path) -> None:
        ran = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "--python",
                self.python,
                "install",
                "--quiet",
                *map(str, what),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def installed(self) -> set[str]:
        ran = subprocess.run(
            [sys.executable, "-m", "pip", "--python", self.python, "list", "--format", "freeze"],
            capture_output=True,
            text=True,
            check=True,
        )
        return {line.partition("==")[0].lower() for line in ran.stdout.split()}

    def fallline(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """The installed command, with nothing of this tree in sight."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
        return subprocess.run(
            [str(self.folder / "bin" / "fallline"), *arguments],
            cwd=cwd,
            env=kept,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
