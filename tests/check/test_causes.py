"""One cause, one report: copies, code of others, and lines that are meant so are notes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

WRONG = """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        probabilities = torch.softmax(model(x), dim=1)
        loss = F.cross_entropy(probabilities, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train([(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))])
"""
RIGHT = WRONG.replace("torch.softmax(model(x), dim=1)", "model(x)")


def severities(fallline: Callable, *paths: str) -> dict[str, str]:
    found = json.loads(fallline("check", *(paths or (".",)), "--output-format", "json").out)
    return {f["path"]: f["severity"] for f in found if f["code"] in {"FL606", "FL000"}}


def test_a_copy_is_reported_once(project: Path, fallline: Callable) -> None:
    (project / "runs").mkdir()
    (project / "train.py").write_text(WRONG)
    (project / "runs" / "train.py").write_text("# kept\n" + WRONG)
    assert severities(fallline) == {"train.py": "error", "runs/train.py": "info"}
    assert "The same lines are in runs/train.py." in fallline("check", ".").out
    # alone it is no copy
    assert severities(fallline, "runs/train.py") == {"runs/train.py": "error"}


def test_other_lines_around_are_another_cause(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG)
    (project / "b.py").write_text(WRONG.replace("loss.backward()", "(2 * loss).backward()"))
    assert severities(fallline) == {"a.py": "error", "b.py": "error"}


def test_a_function_that_was_copied_between_other_lines_is_reported_once(
    project: Path, fallline: Callable
) -> None:
    """Copies of a model differ in what stands around the method that is the same."""
    method = """\
    def encode(self, x):
        out = self.layer(x)
        out = nn.Dropout(0.5)(out)
        out = out.relu()
        return out
"""
    for name in ("a", "b", "c"):
        (project / f"{name}.py").write_text(
            f"from torch import nn\n\n\nclass Net(nn.Module):\n    def {name}(self):\n"
            f"        return '{name}'\n\n{method}\n    def other_{name}(self):\n        return 1\n"
        )
    found = json.loads(fallline("check", ".", "--output-format", "json").out)
    dropped = {f["path"]: f["severity"] for f in found if f["code"] == "FL805"}
    assert dropped == {"a.py": "error", "b.py": "info", "c.py": "info"}


def test_code_of_others_is_noted(project: Path, fallline: Callable) -> None:
    for folder in ("third_party/lib", "fairseq", "ours"):
        (project / folder).mkdir(parents=True)
        wrong = WRONG.replace("probabilities", folder.replace("/", "_"))
        (project / folder / "train.py").write_text(wrong.replace("loss", f"loss_{len(folder)}"))
    (project / "fairseq" / "__init__.py").write_text("")
    for name in ("a.py", "b.py", "c.py"):
        (project / name).write_text(RIGHT)
    assert severities(fallline) == {
        "third_party/lib/train.py": "info",
        "fairseq/train.py": "info",
        "ours/train.py": "error",
    }
    # whoever checks it, means it
    assert severities(fallline, "third_party") == {"third_party/lib/train.py": "error"}


def test_an_unpacked_package_is_noted_however_large_it_is(
    project: Path, fallline: Callable
) -> None:
    (project / "apex-master" / "apex").mkdir(parents=True)
    for number in range(4):
        wrong = WRONG.replace("loss", f"loss_{'a' * number}").replace("loader", f"data_{number}")
        (project / "apex-master" / "apex" / f"part{number}.py").write_text(wrong)
    (project / "train.py").write_text(RIGHT)
    assert set(severities(fallline).values()) == {"info"}
    assert "error" in severities(fallline, "apex-master").values()


def test_a_folder_under_the_licence_of_others_is_noted(project: Path, fallline: Callable) -> None:
    (project / "LICENSE").write_text("MIT License\n\nCopyright (c) 2024 We\n")
    for folder, holder in (("copied", "2019 They"), ("part", "2024 We")):
        (project / folder).mkdir()
        (project / folder / "LICENSE").write_text(f"MIT License\n\nCopyright (c) {holder}\n")
        (project / folder / "train.py").write_text(WRONG.replace("loss", f"loss_{folder}"))
    for name in ("a.py", "b.py"):
        (project / name).write_text(RIGHT)
    assert severities(fallline) == {"copied/train.py": "info", "part/train.py": "error"}


def test_a_comment_can_say_that_it_is_meant(project: Path, fallline: Callable) -> None:
    line = "        loss = F.cross_entropy(probabilities, y)"
    (project / "a.py").write_text(WRONG.replace(line, f"{line}  # on purpose: flat gradients"))
    (project / "b.py").write_text(WRONG.replace(line, f"{line}  # the loss of the class"))
    assert severities(fallline) == {"a.py": "info", "b.py": "error"}


def test_a_file_for_an_older_python_is_noted(project: Path, fallline: Callable) -> None:
    (project / "old.py").write_text("import torch\nprint 'loading', torch\n")
    (project / "older.py").write_text("import torch\nx = torch.ones(1).cuda(async=True)\n")
    (project / "broken.py").write_text("import torch\nx = torch.ones(1\ny = 2\n")
    assert severities(fallline) == {"old.py": "info", "older.py": "info", "broken.py": "error"}


def test_a_copy_that_no_import_can_name_is_noted(project: Path, fallline: Callable) -> None:
    keeps = WRONG.replace(
        "\n\ntrain([(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))])\n", "\n"
    )
    (project / "core copy 6.py").write_text(keeps)
    assert severities(fallline) == {"core copy 6.py": "info"}
    (project / "core_copy_6.py").write_text(keeps)
    assert severities(fallline, "core_copy_6.py") == {"core_copy_6.py": "error"}
