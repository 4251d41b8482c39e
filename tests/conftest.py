"""Fixtures that more than one room uses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fallline.cli.main import main
from fallline.finding import Severity
from fallline.rules.modules.fl803_forward_called import ForwardCalled

# Two workers on two cores: threads of torch's own in each of them, and in the scripts they start, only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


class Ran(NamedTuple):
    """What one command line did."""

    status: int
    out: str
    err: str


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is also the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "FALLLINE_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def fallline(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """Runs `fallline ARGUMENTS...` in the project.

    `model.forward(x)` is the sample mistake of the tests about files, fixes, settings and exit statuses: there it counts.
    """
    monkeypatch.setattr(ForwardCalled, "severity", Severity.WARNING)

    def run(*arguments: str | Path) -> Ran:
        capfd.readouterr()
        try:
            status = main([str(a) for a in arguments])
        except SystemExit as stop:  # argparse's own way to say "wrong usage"
            status = int(stop.code or 0)
        captured = capfd.readouterr()
        return Ran(status, captured.out, captured.err)

    return run
