"""A baseline: what was there before is not reported again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

BEFORE = """\
import torch

model = torch.nn.Linear(1, 1)


def train(x):
    return model.forward(x)
"""


def test_known_findings_are_left_out(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(BEFORE)
    ran = fallline("check", ".", "--write-baseline", "base.json")
    assert ran.status == 0 and "1 finding" in ran.err
    assert fallline("check", ".", "--baseline", "base.json").status == 0


def test_it_survives_moved_and_reindented_lines(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(BEFORE)
    fallline("check", ".", "--write-baseline", "base.json")
    (project / "a.py").write_text(
        BEFORE.replace("def train", "EPOCHS = 3\n\n\ndef train").replace(
            "    return", "        return"
        )
    )
    assert fallline("check", ".", "--baseline", "base.json").status == 0


def test_a_new_one_of_the_same_kind_is_told(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(BEFORE)
    fallline("check", ".", "--write-baseline", "base.json")
    (project / "a.py").write_text(BEFORE + "\n\ndef evaluate(x):\n    return model.forward(x)\n")
    ran = fallline("check", ".", "--baseline", "base.json", "--output-format", "json")
    assert ran.status == 1
    assert [f["line"] for f in json.loads(ran.out)] == [11]


def test_counts_are_kept(project: Path, fallline: Callable) -> None:
    twice = BEFORE.replace(
        "    return", "    y = model.forward(x)\n    y = model.forward(x)\n    return"
    )
    (project / "a.py").write_text(twice)
    fallline("check", ".", "--write-baseline", "base.json")
    assert sorted(
        row["count"] for row in json.loads((project / "base.json").read_text())["findings"]
    ) == [1, 2]
    (project / "a.py").write_text(
        twice.replace("    return", "    y = model.forward(x)\n    return")
    )
    ran = fallline("check", ".", "--baseline", "base.json", "--output-format", "json")
    assert len(json.loads(ran.out)) == 1


def test_a_changed_line_is_told_again(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(BEFORE)
    fallline("check", ".", "--write-baseline", "base.json")
    (project / "a.py").write_text(BEFORE.replace("forward(x)", "forward(x + 1)"))
    assert fallline("check", ".", "--baseline", "base.json").status == 1


def test_fix_leaves_known_findings_alone(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(BEFORE)
    fallline("check", ".", "--write-baseline", "base.json")
    fallline("check", ".", "--baseline", "base.json", "--fix")
    assert (project / "a.py").read_text() == BEFORE


def test_a_broken_baseline_is_wrong_usage(project: Path, fallline: Callable) -> None:
    (project / "a.py").write_text(BEFORE)
    for content in ("{", "[]", '{"findings": [{"code": "FL803"}]}'):
        (project / "base.json").write_text(content)
        ran = fallline("check", ".", "--baseline", "base.json")
        assert ran.status == 2 and "base.json" in ran.err
