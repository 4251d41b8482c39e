"""What is read again after a keystroke: enough to be right, and no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fallline.check.discovery import shown
from fallline.lsp import project as module
from fallline.lsp.project import Project, Target
from fallline.verdict.project import read_paths

HELPER = """\
from torch import nn


def finish(scaler, optimizer, model):
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
"""
TRAIN = """\
import torch
from helper import finish
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler()
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    finish(scaler, optimizer, model)
    scaler.update()
"""
APART = "import torch\n\n\ndef evaluate(model, loader):\n    with torch.no_grad():\n        return [model(x) for x in loader]\n"


@pytest.fixture
def read(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A project of three files; the list has the names of what was read since it was last cleared."""
    for name, text in (("helper.py", HELPER), ("train.py", TRAIN), ("apart.py", APART)):
        (project / name).write_text(text)
    names: list[str] = []

    def noted(paths: list[str], **options: object) -> list[module.Reading]:
        names.extend(paths)
        return read_paths(paths, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "read_paths", noted)
    return names


def codes(found: list[module.Finding] | None) -> list[tuple[str, str]]:
    assert found is not None
    return [(f.at.path, f.code) for f in found]


def test_a_keystroke_reads_its_file_alone(project: Path, read: list[str]) -> None:
    memory = Project(str(project))
    path = str(project / "train.py")
    assert codes(memory.findings({path: TRAIN.encode()})) == []
    assert sorted(read) == ["apart.py", "helper.py", "train.py"]
    read.clear()
    assert codes(memory.findings({path: (TRAIN + "# a comment\n").encode()})) == []
    assert read == ["train.py"]
    read.clear()
    assert codes(memory.findings({path: (TRAIN + "# a comment\n").encode()})) == []
    assert read == []


def test_who_imports_a_file_is_read_with_it(project: Path, read: list[str]) -> None:
    memory = Project(str(project))
    path = str(project / "helper.py")
    memory.findings({path: HELPER.encode()})
    read.clear()
    wrong = HELPER.replace("    scaler.unscale_(optimizer)\n", "")
    assert codes(memory.findings({path: wrong.encode()})) == [("helper.py", "FL201")]
    assert sorted(read) == ["helper.py", "train.py"]


def test_who_is_newly_called_is_read_again(project: Path, read: list[str]) -> None:
    memory = Project(str(project))
    path = str(project / "train.py")
    memory.findings({path: TRAIN.encode()})
    read.clear()
    memory.findings({path: (TRAIN + "    evaluate(model, loader)\n").encode()})
    assert sorted(read) == ["apart.py", "train.py"]


def test_files_come_go_and_change_on_disk(project: Path, read: list[str]) -> None:
    memory = Project(str(project))
    path = str(project / "apart.py")
    given = {path: APART.encode()}
    assert codes(memory.findings(given)) == []
    (project / "other.py").write_text(
        TRAIN.replace(
            "    finish(scaler, optimizer, model)",
            "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    scaler.step(optimizer)",
        )
    )
    assert codes(memory.findings(given)) == [("other.py", "FL201")]
    (project / "other.py").unlink()
    assert codes(memory.findings(given)) == []
    (project / "helper.py").write_text(HELPER.replace("    scaler.unscale_(optimizer)\n", ""))
    assert codes(memory.findings(given)) == [("helper.py", "FL201")]


def test_the_quick_answer_waits_where_callers_decide(project: Path, read: list[str]) -> None:
    memory = Project(str(project))
    helper, train = str(project / "helper.py"), str(project / "train.py")
    assert codes(memory.opened({train: TRAIN.encode()})) == []  # before anything else was read
    memory.findings({train: TRAIN.encode(), helper: HELPER.encode()})
    changed = HELPER + "# typed\n"
    assert memory.opened({helper: changed.encode()}) is None
    assert codes(memory.opened({train: (TRAIN + "# typed\n").encode()})) == []


@pytest.mark.parametrize(
    "text", [TRAIN, "", "def (", "\0", "# coding: latin-1\nä = 1\n", "# coding: nonsense\n"]
)
def test_whatever_is_typed_is_answered(project: Path, text: str) -> None:
    memory = Project(str(project))
    given = {str(project / "typed.py"): module.as_bytes(text)}
    assert memory.opened(given) is not None
    memory.findings(given)
    assert memory.fixed(given, None, False) == []
    assert memory.fixed(given, Target("FL201", str(project / "typed.py"), 1), True) == []


def test_a_file_with_too_many_neighbours_is_read_alone(
    project: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 1)
    Project(str(project)).findings({str(project / "apart.py"): APART.encode()})
    assert read == ["apart.py"]


def test_the_server_needs_no_torch() -> None:
    ask = "import sys, fallline.lsp.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", ask], check=False).returncode == 0


def test_a_stray_file_is_a_project_of_its_own(tmp_path: Path) -> None:
    """Opened alone from a folder that nobody called a project, it must not make us read that folder: it may be a whole disk."""
    for n in range(5):
        (tmp_path / f"other{n}.py").write_text("import torch\nmodel.forward(x)\n")
    file = tmp_path / "stray.py"
    file.write_text("import torch\n")
    project = Project(str(file))
    project.findings({str(file): file.read_bytes()})
    assert list(project._readings) == [shown(str(file))]
