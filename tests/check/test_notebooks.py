"""Notebooks: findings are told in cells, fixes change one cell's source and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CELLS = [
    ("markdown", "# Übung\nmodel.forward(x)"),
    ("code", "%matplotlib inline\nimport torch\n!pip list"),
    ("code", "model = torch.nn.Linear(1, 1)\n\ny = model.forward(torch.ones(1))"),
    ("code", ""),
    ("code", "for _ in range(2):\n    z = model.forward(y)"),
]


def notebook(cells: list[tuple[str, str]] = CELLS, as_list: bool = True) -> dict[str, Any]:
    made = []
    for kind, text in cells:
        source: Any = text.splitlines(keepends=True) if as_list else text
        extra = {"execution_count": None, "outputs": []} if kind == "code" else {}
        made.append({"cell_type": kind, **extra, "metadata": {}, "source": source})
    return {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def test_findings_are_told_in_cells(project: Path, fallline: Callable) -> None:
    (project / "nb.ipynb").write_text(json.dumps(notebook()))
    ran = fallline("check", ".", "--output-format", "concise")
    places = [line.split(": ")[0] for line in ran.out.splitlines()]
    assert places == ["nb.ipynb:cell 3:3:5", "nb.ipynb:cell 5:2:9"]


def test_json_has_the_cell_in_the_evidence(project: Path, fallline: Callable) -> None:
    (project / "nb.ipynb").write_text(json.dumps(notebook()))
    found = json.loads(fallline("check", ".", "--output-format", "json").out)
    assert [(f["evidence"]["cell"], f["line"], f["end_line"]) for f in found] == [
        (3, 3, 3),
        (5, 2, 2),
    ]
    assert [edit["line"] for f in found for edit in f["fix"]["edits"]] == [3, 2]


def test_full_shows_the_cells_own_lines(project: Path, fallline: Callable) -> None:
    (project / "nb.ipynb").write_text(json.dumps(notebook()))
    out = fallline("check", ".").out
    assert "3 | y = model.forward(torch.ones(1))" in out
    assert "2 |     z = model.forward(y)" in out


@pytest.mark.parametrize("as_list", [True, False])
@pytest.mark.parametrize("indent", [1, 2, 4, "\t", None])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("end", ["", "\n"])
def test_fix_changes_the_cell_and_nothing_else(
    project: Path,
    fallline: Callable,
    as_list: bool,
    indent: int | str | None,
    ascii_only: bool,
    end: str,
) -> None:
    def data(cells: list[tuple[str, str]]) -> bytes:
        return (
            json.dumps(notebook(cells, as_list), indent=indent, ensure_ascii=ascii_only) + end
        ).encode()

    (project / "nb.ipynb").write_bytes(data(CELLS))
    assert fallline("check", ".", "--fix", "--no-cache").status == 0
    fixed = [
        (kind, text.replace("model.forward(", "model(") if kind == "code" else text)
        for kind, text in CELLS
    ]
    assert (project / "nb.ipynb").read_bytes() == data(fixed)


def test_noqa_in_a_cell(project: Path, fallline: Callable) -> None:
    cells = [
        (kind, text.replace("forward(y)", "forward(y)  # noqa: FL803")) for kind, text in CELLS
    ]
    (project / "nb.ipynb").write_text(json.dumps(notebook(cells)))
    assert len(fallline("check", ".", "--output-format", "concise").out.splitlines()) == 1


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "null",
        '{"cells": 3}',
        '{"cells": [3]}',
        '{"cells": [{"cell_type": "code", "source": [1]}]}',
        "\0",
    ],
)
def test_a_broken_notebook_is_unreadable_and_the_rest_is_read(
    project: Path, fallline: Callable, content: str
) -> None:
    (project / "bad.ipynb").write_text(content)
    (project / "good.ipynb").write_text(json.dumps(notebook()))
    ran = fallline("check", ".", "--output-format", "json")
    assert ran.status == 1
    assert [f["code"] for f in json.loads(ran.out)] == ["FL000", "FL803", "FL803"]


@pytest.mark.parametrize("content", ["", " \n"])
def test_an_empty_notebook_is_silent(project: Path, fallline: Callable, content: str) -> None:
    (project / "empty.ipynb").write_text(content)
    ran = fallline("check", ".", "--output-format", "json", "--show-notes")
    assert ran.status == 0 and json.loads(ran.out) == []


def test_a_syntax_error_names_its_cell(project: Path, fallline: Callable) -> None:
    (project / "nb.ipynb").write_text(
        json.dumps(notebook([*CELLS[:2], ("code", "x = 1\ndef f(:")]))
    )
    ran = fallline("check", ".", "--output-format", "concise", "--show-notes")
    assert ran.out.startswith("nb.ipynb:cell 3:2:7: FL000 ")


def test_a_cell_that_is_not_python_keeps_no_other_from_being_read(
    project: Path, fallline: Callable
) -> None:
    cells = [("code", "print 'two'"), *CELLS, ("code", "x = <YOUR CODE>")]
    (project / "nb.ipynb").write_text(json.dumps(notebook(cells)))
    found = json.loads(fallline("check", ".", "--output-format", "json").out)
    (unread,) = [f for f in found if f["code"] == "FL000"]
    assert unread["severity"] == "info" and unread["evidence"]["cell"] == 1
    assert "1 more cell could not be read" in unread["message"]
    assert "FL803" in [f["code"] for f in found]


def test_a_notebook_of_which_nothing_can_be_read_is_an_error(
    project: Path, fallline: Callable
) -> None:
    cells = [("code", "import torch; print 'two'"), ("code", "optimizer.step() print 'three'")]
    (project / "nb.ipynb").write_text(json.dumps(notebook(cells)))
    ran = fallline("check", ".", "--output-format", "json")
    assert ran.status == 1
    assert [(f["code"], f["severity"]) for f in json.loads(ran.out)] == [("FL000", "error")]


@pytest.mark.parametrize(
    "cell",
    [
        "x = <YOUR CODE>",
        "def f(x):\n    <predicted probabilities>\n    return y",
        "for x in y:\n    # YOUR_CODE HERE\nprint(1)",
        "x = # fill me in",
        "x = <>",
        "entropy = <YOUR CODE: H = -sum(p*log_p), don't forget the sign!>",
        "policy, Q = control(env, ?, ?)",
        "loss = ___ ___",
        "x = 1 +",
        "def f(x):\n    # YOUR CODE HERE\n",
    ],
)
def test_a_blank_to_fill_in_is_a_note(project: Path, fallline: Callable, cell: str) -> None:
    cells = [
        ("code", "import torch\noptimizer = torch.optim.SGD(p)\noptimizer.step()"),
        ("code", cell),
    ]
    (project / "nb.ipynb").write_text(json.dumps(notebook(cells)))
    ran = fallline("check", ".", "--output-format", "json")
    assert ran.status == 0
    assert [f["severity"] for f in json.loads(ran.out) if f["code"] == "FL000"] == ["info"]


@pytest.mark.parametrize(
    "cell",
    [
        "pip install -q transformers",
        "! python a.py \\\r\n    --data train \\\r\n    --out b",
        "cd src",
    ],
)
def test_what_ipython_runs_is_read(project: Path, fallline: Callable, cell: str) -> None:
    (project / "nb.ipynb").write_text(json.dumps(notebook([*CELLS, ("code", cell)])))
    found = json.loads(fallline("check", ".", "--output-format", "json").out)
    assert found and "FL000" not in [f["code"] for f in found]


def test_lines_in_a_message_are_lines_of_cells(project: Path, fallline: Callable) -> None:
    cells = [
        ("code", "import torch\nfrom torch import nn\nprobabilities = nn.Softmax(dim=1)(logits)"),
        ("code", "loss = nn.CrossEntropyLoss()(probabilities, targets)\nloss.backward()"),
    ]
    (project / "nb.ipynb").write_text(json.dumps(notebook(cells)))
    found = json.loads(fallline("check", ".", "--output-format", "json").out)
    (message,) = [f["message"] for f in found if f["code"] == "FL606"]
    assert "(line 3 of cell 1)" in message


def test_a_notebook_in_another_language_is_not_ours(project: Path, fallline: Callable) -> None:
    book = notebook([("code", "library(torch)\nx <- 1")])
    book["metadata"] = {"kernelspec": {"language": "R"}}
    (project / "nb.ipynb").write_text(json.dumps(book))
    assert fallline("check", ".").status == 0


@pytest.mark.parametrize(
    "command",
    [
        '!tts --text "a b" \\\n--speaker LJ001-0001.wav \\\n    --out_path out.wav',
        " !tts --text a \\\n      --out_path out.wav",
        "import os\n! python prepare.py --data \\\n      --split train\n\n!ls \\\n  -l",
        "print('%d' \\\n      % 3)\nx = (1\n  % 2)",
        "!ls\nprint('%d' \\\n      % 3)",
        "listed = !ls \\\n  -l",
        "if True:\n    !ls\n    %cd ..",
        "!ls\nplot(1,\n     # which colours?\n     2)",
        "torch.nn.Linear?\nx = 1",
        " # IPython takes the indentation away\n x = 1\n x",
    ],
)
def test_commands_may_go_on_over_several_lines(
    command: str, project: Path, fallline: Callable
) -> None:
    cells = [("code", command), ("code", "import torch\nmodel = torch.nn.Linear(1, 1)")]
    (project / "nb.ipynb").write_text(json.dumps(notebook(cells)))
    assert fallline("check", ".", "--output-format", "concise").status == 0
