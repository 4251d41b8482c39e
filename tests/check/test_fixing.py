"""`--fix` and `--diff`: what a fix changes, what it leaves alone, and when it is withdrawn."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from fallline.finding import Edit, Finding, Fix
from fallline.rules import rule_by_code
from fallline.syntax import Module

WRONG = "import torch\n\nmodel = torch.nn.Linear(1, 1)\ny = model.forward(torch.ones(1))\nz = model.forward(y)\n"
RIGHT = WRONG.replace("model.forward(", "model(")

FixOf = Callable[[object, Finding, Module], Fix | None]


@pytest.fixture
def other_fix(monkeypatch: pytest.MonkeyPatch) -> Callable[[FixOf], None]:
    """Puts another fix in the place of FL803's."""
    return lambda fix: monkeypatch.setattr(type(rule_by_code("FL803")), "fix", fix)


def test_fix_writes_and_reads_again(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG)
    ran = fallline("check", "a.py", "--fix")
    assert ran.status == 0
    assert (project / "a.py").read_text() == RIGHT
    assert "Fixed 2 findings." in ran.err


def test_fix_with_nothing_to_fix_writes_nothing(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(RIGHT)
    before = os.stat("a.py")
    assert fallline("check", "a.py", "--fix").status == 0
    assert (
        os.stat("a.py").st_mtime_ns == before.st_mtime_ns
        and os.stat("a.py").st_ino == before.st_ino
    )


def test_diff_shows_and_changes_nothing(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG)
    ran = fallline("check", "a.py", "--diff")
    assert ran.status == 1
    assert ran.out.startswith("--- a.py\n+++ a.py\n@@")
    assert (
        "-y = model.forward(torch.ones(1))\n" in ran.out
        and "+y = model(torch.ones(1))\n" in ran.out
    )
    assert (project / "a.py").read_text() == WRONG


def test_diff_of_nothing_is_0_and_empty(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(RIGHT)
    ran = fallline("check", "a.py", "--diff")
    assert (ran.status, ran.out) == (0, "")


def test_the_diff_applies(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG.removesuffix("\n"))
    (project / "fix.patch").write_text(fallline("check", "a.py", "--diff").out)
    assert os.system("patch -p0 --quiet < fix.patch") == 0
    assert (project / "a.py").read_text() == RIGHT.removesuffix("\n")


def test_only_what_is_selected_and_not_silenced_is_fixed(project: Path, fallline: Callable) -> None:
    text = WRONG.replace("forward(y)", "forward(y)  # noqa: FL803")
    (project / "a.py").write_text(text)
    fallline("check", "a.py", "--fix", "--select", "FL1")
    assert (project / "a.py").read_text() == text
    fallline("check", "a.py", "--fix")
    assert (project / "a.py").read_text() == text.replace("model.forward(torch", "model(torch")


@pytest.mark.parametrize(
    ("encoding", "bom", "newline"),
    [
        ("utf-8", b"", "\r\n"),
        ("utf-8", b"\xef\xbb\xbf", "\n"),
        ("utf-8", b"\xef\xbb\xbf", "\r\n"),
        ("latin-1", b"", "\n"),
        ("cp1252", b"", "\r\n"),
    ],
)
def test_bytes_that_are_not_the_fix_stay(
    project: Path, fallline: Callable, encoding: str, bom: bytes, newline: str
) -> None:
    head = (
        f"# -*- coding: {encoding} -*-\n# Übung: größer\n"
        if encoding != "utf-8"
        else "# Übung: größer\x0c\n"
    )

    def data(body: str) -> bytes:
        return bom + (head + body).replace("\n", newline).encode(encoding)

    (project / "a.py").write_bytes(data(WRONG))
    assert fallline("check", "a.py", "--fix").status == 0
    assert (project / "a.py").read_bytes() == data(RIGHT)


def test_inserted_lines_end_as_the_file_does(
    project: Path, fallline: Callable, other_fix: Callable
) -> None:
    def fix(self: object, finding: Finding, module: Module) -> Fix:
        line = finding.at.line
        return Fix(
            "call it", (Edit(line, 1, line + 1, 1, "first = 1\ny = model(torch.ones(1))\n"),)
        )

    other_fix(fix)
    (project / "a.py").write_bytes(WRONG.rsplit("z =")[0].replace("\n", "\r\n").encode())
    fallline("check", "a.py", "--fix")
    data = (project / "a.py").read_bytes()
    assert b"first = 1\r\ny = model(" in data and data.count(b"\n") == data.count(b"\r\n")


def test_the_mode_and_a_link_stay(project: Path, fallline: Callable) -> None:
    (project / "real.py").write_text(WRONG)
    (project / "real.py").chmod(0o754)
    (project / "link.py").symlink_to("real.py")
    fallline("check", "link.py", "--fix")
    assert (project / "link.py").is_symlink()
    assert (project / "real.py").read_text() == RIGHT
    assert stat.S_IMODE(os.stat("real.py").st_mode) == 0o754


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(
    project: Path, fallline: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "a.py").write_text(WRONG)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ran = fallline("check", "a.py", "--fix", "--no-cache")
    assert ran.status == 2
    assert "a.py cannot be written: No space left on device" in ran.err
    assert (project / "a.py").read_text() == WRONG
    assert os.listdir(project) == ["a.py"]


def test_a_file_that_someone_else_changed_meanwhile_is_left_alone(
    project: Path, fallline: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fallline.check.fixing import Fixer

    (project / "a.py").write_text(WRONG)
    run = Fixer.run

    def slow(self: Fixer) -> None:
        run(self)
        (project / "a.py").write_text("# mine\n")

    monkeypatch.setattr(Fixer, "run", slow)
    ran = fallline("check", "a.py", "--fix")
    assert ran.status == 2 and "a.py" in ran.err
    assert (project / "a.py").read_text() == "# mine\n"


UNCOVERS = """0


class Net(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x)


y = model"""


def replaced_by(content: str) -> FixOf:
    def fix(self: object, finding: Finding, module: Module) -> Fix:
        line = finding.at.line
        return Fix("another", (Edit(line, 5, line, 5 + len("model.forward"), content),))

    return fix


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("model.forward", "the finding is still there"),
        ("model(", "the file cannot be parsed any more"),
        (UNCOVERS, "another finding is added"),
    ],
)
def test_a_fix_that_does_not_hold_is_withdrawn(
    project: Path, fallline: Callable, other_fix: Callable, content: str, why: str
) -> None:
    other_fix(replaced_by(content))
    (project / "a.py").write_text(WRONG)
    ran = fallline("check", "a.py", "--fix", "--select", "FL803")
    assert ran.status == 1, why
    assert (project / "a.py").read_text() == WRONG
    assert "withdrawn" in ran.err


def test_what_a_fix_uncovers_is_fixed_with_it(
    project: Path, fallline: Callable, other_fix: Callable
) -> None:
    other_fix(replaced_by(UNCOVERS))
    (project / "a.py").write_text(WRONG.rsplit("z =")[0])
    ran = fallline("check", "a.py", "--fix", "--select", "FL8")
    assert ran.status == 0
    assert "dropout(x, training=self.training)" in (project / "a.py").read_text()


def test_a_withdrawn_fix_does_not_hold_back_the_others(
    project: Path, fallline: Callable, other_fix: Callable
) -> None:
    def fix(self: object, finding: Finding, module: Module) -> Fix:
        line, good = finding.at.line, "ones" in module.source.lines[finding.at.line - 1]
        return Fix(
            "half right",
            (Edit(line, 5, line, 5 + len("model.forward"), "model" if good else "(("),),
        )

    other_fix(fix)
    (project / "a.py").write_text(WRONG)
    ran = fallline("check", "a.py", "--fix")
    assert ran.status == 1
    assert (project / "a.py").read_text() == WRONG.replace("model.forward(torch", "model(torch")


def test_unsafe_fixes_are_made_only_on_demand(
    project: Path, fallline: Callable, other_fix: Callable
) -> None:
    def fix(self: object, finding: Finding, module: Module) -> Fix:
        line = finding.at.line
        return Fix("unsafe", (Edit(line, 5, line, 5 + len("model.forward"), "model"),), safe=False)

    other_fix(fix)
    (project / "a.py").write_text(WRONG)
    assert fallline("check", "a.py", "--fix").status == 1
    assert (project / "a.py").read_text() == WRONG
    assert fallline("check", "a.py", "--fix", "--unsafe-fixes").status == 0
    assert (project / "a.py").read_text() == RIGHT


def test_a_file_that_was_not_given_is_never_changed(
    project: Path, fallline: Callable, other_fix: Callable
) -> None:
    def fix(self: object, finding: Finding, module: Module) -> Fix:
        return Fix("elsewhere", (Edit(1, 1, 1, 1, "x = 1\n", path="other.py"),))

    other_fix(fix)
    (project / "a.py").write_text(WRONG)
    (project / "other.py").write_text("")
    fallline("check", "a.py", "--fix")
    assert (project / "other.py").read_text() == ""


def test_json_edits_are_what_fix_does(project: Path, fallline: Callable) -> None:
    from fallline.syntax.edits import apply

    (project / "a.py").write_text(WRONG)
    found = json.loads(fallline("check", "a.py", "--output-format", "json").out)
    edits = [Edit(**edit) for finding in found for edit in finding["fix"]["edits"]]
    assert apply(WRONG, edits) == RIGHT


def test_a_fix_in_a_helper_is_verified_where_it_is_called(
    project: Path, fallline: Callable
) -> None:
    (project / "train.py").write_text(
        "import torch\nfrom helper import update\n\nmodel = torch.nn.Linear(1, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nfor x, y in loader:\n"
        "    loss = torch.nn.functional.mse_loss(model(x), y)\n    update(loss, model, optimizer)\n"
    )
    helper = (
        "import torch\n\n\ndef update(loss, model, optimizer):\n    optimizer.zero_grad()\n    loss.backward()\n"
        "    optimizer.step()\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    )
    (project / "helper.py").write_text(helper)
    assert "FL101" in fallline("check", ".").out
    assert fallline("check", "train.py", "--fix").status == 1
    assert (project / "helper.py").read_text() == helper, "it was not given"
    assert fallline("check", ".", "--fix").status == 0
    assert (project / "helper.py").read_text().endswith("1.0)\n    optimizer.step()\n")
