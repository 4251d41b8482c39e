"""`fallline check` as people and scripts call it: the contract of its options, formats and exit statuses."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fallline.rules import rule_by_code

WRONG = "import torch\n\nmodel = torch.nn.Linear(1, 1)\ny = model.forward(torch.ones(1))\n"
RIGHT = WRONG.replace("model.forward(", "model(")
INFO_ONLY = "import torch\n\nscaler = torch.cuda.amp.GradScaler()\n"
FIELDS = {
    "code", "name", "severity", "message", "path", "line", "column", "end_line", "end_column",
    "specialist", "fix", "evidence",
}  # fmt: skip


def test_nothing_found_is_0(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(RIGHT)
    ran = fallline("check", ".")
    assert (ran.status, ran.out, ran.err) == (0, "Nothing found in 1 file.\n", "")


def test_findings_are_1(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG)
    ran = fallline("check", ".")
    assert ran.status == 1
    assert "FL803" in ran.out and "a.py:4:5" in ran.out


def test_info_alone_is_0_but_told(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(INFO_ONLY)
    ran = fallline("check", "a.py", "--output-format", "json")
    assert ran.status == 0
    assert [f["severity"] for f in json.loads(ran.out)] == ["info"]


def test_exit_zero(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG)
    assert fallline("check", "a.py", "--exit-zero").status == 0


def test_json_is_the_contract(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG)
    found = json.loads(fallline("check", ".", "--output-format", "json").out)
    assert len(found) == 1
    assert set(found[0]) == FIELDS
    assert {k: found[0][k] for k in ("code", "name", "severity", "path", "line", "column")} == {
        "code": "FL803",
        "name": "forward-called",
        "severity": "warning",
        "path": "a.py",
        "line": 4,
        "column": 5,
    }
    assert found[0]["specialist"] == "module-design-patterns"
    assert found[0]["fix"]["safe"] is True
    assert set(found[0]["fix"]["edits"][0]) == {
        "line",
        "column",
        "end_line",
        "end_column",
        "content",
    }


def test_json_of_nothing_is_an_empty_array(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text("")
    assert fallline("check", "a.py", "--output-format", "json").out == "[]\n"


def test_paths_are_relative_below_the_working_directory(project: Path, fallline: Callable) -> None:
    (project / "pkg").mkdir()
    (project / "pkg" / "a.py").write_text(WRONG)
    ran = fallline("check", project / "pkg", "--output-format", "concise")
    assert ran.out.startswith("pkg/a.py:4:5: FL803 [*] ")


def test_a_missing_path_is_a_finding(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG)
    ran = fallline("check", "nope.py", "a.py", "--output-format", "json")
    assert ran.status == 1
    assert [(f["code"], f["path"]) for f in json.loads(ran.out)] == [
        ("FL803", "a.py"),
        ("FL000", "nope.py"),
    ]


def test_a_missing_path_has_no_code_to_show(project: Path, fallline: Callable) -> None:
    ran = fallline("check", "nope.py")
    assert ran.status == 1
    assert "No such file" in ran.out and "|" not in ran.out and "^" not in ran.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-such-option"],
        ["--select", "FL999"],
        ["--select", "no-such-name"],
        ["--ignore", "E501"],
        ["--fix", "--diff"],
        ["--jobs", "-1"],
        ["--output-format", "xml"],
        ["--baseline", "missing.json"],
        ["--stdin-filename", "x.py"],
        ["--output-file", "no/such/folder/out.txt"],
    ],
)
def test_wrong_usage_is_2_in_one_clear_message(
    project: Path, fallline: Callable, arguments: list[str]
) -> None:
    (project / "a.py").write_text(WRONG)
    ran = fallline("check", "a.py", *arguments)
    assert ran.status == 2
    assert "Traceback" not in ran.err
    assert any(word.strip("-") in ran.err for word in arguments)


def test_no_path_is_wrong_usage(fallline: Callable) -> None:
    assert fallline("check").status == 2


def test_a_mistake_of_our_own_is_2_in_one_line(
    project: Path, fallline: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "a.py").write_text(WRONG)
    monkeypatch.setattr("fallline.check.outcome.discover", lambda *a: 1 / 0)
    ran = fallline("check", "a.py")
    assert ran.status == 2
    assert ran.err.count("\n") == 1 and "ZeroDivisionError" in ran.err


def test_a_rule_that_fails_costs_no_other_finding(
    project: Path, fallline: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, module: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(type(rule_by_code("FL801")), "check_syntax", broken)
    monkeypatch.setattr(type(rule_by_code("FL801")), "tokens", ())
    (project / "a.py").write_text(WRONG)
    ran = fallline("check", "a.py", "--output-format", "json")
    assert ran.status == 2
    assert [f["code"] for f in json.loads(ran.out)] == ["FL803"]
    assert "FL801" in ran.err and "a mistake of ours" in ran.err and "Traceback" not in ran.err


def test_select_by_code_prefix_and_name(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG + "torch.cuda.amp.GradScaler()\n")

    def codes(*arguments: str) -> list[str]:
        return [
            f["code"]
            for f in json.loads(
                fallline("check", "a.py", "--output-format", "json", *arguments).out
            )
        ]

    assert codes() == ["FL803", "FL210"]
    assert (
        codes("--select", "FL803")
        == codes("--select", "FL8")
        == codes("--select", "forward-called")
        == ["FL803"]
    )
    assert codes("--select", "fl8,FL210") == codes("--select", "ALL") == ["FL803", "FL210"]
    assert codes("--ignore", "FL2") == codes("--select", "FL8", "--ignore", "FL2") == ["FL803"]
    assert codes("--ignore", "FL8", "--select", "FL803") == ["FL803"], (
        "the more exact of the two wins"
    )
    assert codes("--select", "FL803", "--ignore", "forward-called") == []


def test_an_unreadable_file_is_told_whatever_is_selected(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text("def f(:\n")
    assert fallline("check", "a.py", "--select", "FL803").status == 1
    assert fallline("check", "a.py", "--ignore", "FL000").status == 0


def test_several_processes_say_what_one_says(project: Path, fallline: Callable) -> None:
    for number in range(12):
        (project / f"m{number}.py").write_text(WRONG if number % 3 else RIGHT)
    (project / "bad.py").write_text("def f(:\n")
    one, two = (
        fallline("check", ".", "--no-cache", "--jobs", n, "--output-format", "json")
        for n in ("1", "2")
    )
    assert one == two
    assert len(json.loads(one.out)) == 9


def test_statistics(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG + "z = model.forward(y)\n")
    assert fallline("check", "a.py", "--statistics").out.split() == [
        "2",
        "FL803",
        "[*]",
        "forward-called",
    ]


def test_output_file(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(WRONG)
    ran = fallline("check", "a.py", "--output-format", "json", "--output-file", "report.json")
    assert (ran.status, ran.out) == (1, "")
    assert json.loads((project / "report.json").read_text())[0]["code"] == "FL803"


def test_standard_input(project: Path, fallline: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WRONG.encode())))
    ran = fallline("check", "-", "--stdin-filename", "pkg/a.py", "--output-format", "json")
    assert ran.status == 1
    assert json.loads(ran.out)[0]["path"] == "pkg/a.py"


def test_standard_input_fixed_goes_to_standard_output(
    project: Path, fallline: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WRONG.encode())))
    ran = fallline("check", "-", "--fix")
    assert (ran.status, ran.out) == (0, RIGHT)


def test_colour_only_where_it_is_wanted(
    project: Path, fallline: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "a.py").write_text(WRONG)
    assert "\x1b[" not in fallline("check", "a.py").out
    assert "\x1b[" in fallline("check", "a.py", "--color", "always").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in fallline("check", "a.py").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in fallline("check", "a.py").out


def test_a_closed_pipe_is_no_traceback(project: Path) -> None:
    (project / "a.py").write_text(WRONG * 200)
    command = f"{sys.executable} -m fallline check a.py | head -1"
    ran = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=project, check=False
    )
    assert "Traceback" not in ran.stderr and "Exception ignored" not in ran.stderr


def test_a_folder_without_python_says_so(project: Path, fallline: Callable) -> None:
    ran = fallline("check", ".")
    assert ran.status == 0 and "no .py or .ipynb file" in ran.out
    assert fallline("check", ".", "--output-format", "json").out == "[]\n"


def test_a_fix_that_cannot_be_written_is_not_called_made(
    project: Path, fallline: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str, data: bytes) -> None:
        raise PermissionError(13, "Permission denied", path)

    (project / "a.py").write_text(WRONG)
    monkeypatch.setattr("fallline.check.fixing.write_atomically", refused)
    ran = fallline("check", "a.py", "--fix", "--no-cache")
    assert ran.status == 2 and "a.py cannot be written: Permission denied" in ran.err
    assert "Fixed" not in ran.err and "Nothing found" not in ran.out


NEVER = """
import sys
{run}
heavy = [name for name in ("torch", "numpy", "rich") if name in sys.modules]
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    "run",
    [
        "import fallline; assert fallline.__version__",
        "from fallline.cli.main import main; main(['check', 'a.py', '--explain', '--no-cache', '--jobs', '1'])",
        "from fallline.cli.main import main; main(['check', 'a.py', '--diff'])",
        "from fallline.cli.main import main; main(['check', '.', '--output-format', 'sarif'])",
        "from fallline.cli.main import main; main(['rule', '--all'])",
    ],
)
def test_torch_is_never_imported(project: Path, run: str) -> None:
    (project / "a.py").write_text(WRONG)
    ran = subprocess.run(
        [sys.executable, "-c", NEVER.format(run=run)],
        capture_output=True,
        text=True,
        cwd=project,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_an_empty_file_needs_none_of_the_reader(project: Path) -> None:
    (project / "a.py").write_text("")
    code = (
        "import sys; from fallline.cli.main import main; main(['check', 'a.py']);"
        "print(sorted({'ast', 'dataclasses', 'typing', 'json', 'fallline.reader', 'fallline.rule'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=project, check=True
    )
    assert ran.stdout.splitlines()[-1] == "[]"


UNSCALED_TWICE = """\
import torch

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8)
for i, inputs in enumerate(loader):
    loss = model(inputs).mean() / 4
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


def selected(fallline: Callable, *options: str) -> list[str]:
    return [
        f["code"]
        for f in json.loads(fallline("check", "a.py", "--output-format", "json", *options).out)
    ]


def test_a_finding_yields_only_to_what_is_selected(project: Path, fallline: Callable) -> None:
    """FL202 is right too; it is left out only where FL212, which says why, is there."""
    (project / "a.py").write_text(UNSCALED_TWICE)
    assert "FL202" not in selected(fallline) and "FL212" in selected(fallline)
    for _ in range(2):  # the second time from the cache
        assert selected(fallline, "--select", "FL202") == ["FL202"]
        assert selected(fallline, "--ignore", "FL212") == ["FL202"]
        assert selected(fallline, "--select", "FL202,FL212") == ["FL212"]
    (project / "pyproject.toml").write_text(
        '[tool.fallline.per-file-ignores]\n"a.py" = ["FL212"]\n'
    )
    assert selected(fallline) == ["FL202"]


def test_a_comment_that_silences_a_finding_does_not_uncover_what_yields_to_it(
    project: Path, fallline: Callable
) -> None:
    line = "    scaler.unscale_(optimizer)"
    (project / "a.py").write_text(UNSCALED_TWICE.replace(line, f"{line}  # noqa: FL212"))
    assert selected(fallline) == []


def test_codes_and_names_are_checked_without_importing_the_rules(project: Path) -> None:
    (project / "a.py").write_text("")
    code = (
        "import sys; from fallline.cli.main import main;"
        "main(['check', 'a.py', '--select', 'FL1,unscale-twice', '--ignore', 'fl101']);"
        "print([m for m in sys.modules if m.startswith('fallline.rules.') or m in ('ast', 'typing', 'dataclasses', 'fallline.rule')])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=project, check=True
    )
    assert ran.stdout.splitlines()[-1] == "[]"
