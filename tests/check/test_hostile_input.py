"""Files, settings and baselines that may hold anything: each ends in a sentence about that file, never as our own mistake."""

from __future__ import annotations

import encodings.aliases
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ESC = "\x1b]0;owned\x07\x9b2J\u202e"
WRONG = "import torch\n\nmodel = torch.nn.Linear(1, 1)\ny = model.forward(torch.ones(1))\n"
CODECS = sorted({*encodings.aliases.aliases.values(), "idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape"})  # fmt: skip

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from([10**400, 1e308, "\0", "../" * 9, "/dev/zero", ESC]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def no_fault_of_ours(ran: tuple[int, str, str]) -> None:
    assert ran[0] in (0, 1, 2)
    assert "mistake in fallline" not in ran[2] and "Traceback" not in ran[2], ran
    assert "\x1b" not in ran[1] + ran[2] and "\x9b" not in ran[1] + ran[2]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_that_python_knows(project: Path, fallline: Callable, codec: str) -> None:
    (project / "a.py").write_bytes(
        f"# -*- coding: {codec} -*-\n{WRONG}x = '".encode() + b"\xff\x80'\n"
    )
    no_fault_of_ours(fallline("check", ".", "--fix", "--no-cache"))


DEEP = {
    "notebook": ("a.ipynb", '{"cells": ' + "[" * 50_000),
    "notebook, whole": ("a.ipynb", '{"cells": ' + "[" * 5_000 + "]" * 5_000 + "}"),
    "toml": ("pyproject.toml", "[tool.fallline]\nselect = " + "[" * 50_000),
    "toml tables": ("pyproject.toml", "[tool.fallline]\nthresholds = " + "{a = " * 5_000),
    "toml keys": ("pyproject.toml", "[tool.fallline]\n" + "a." * 2_000 + "b = 1\n"),  # deeper than Python recurses; tomllib takes the square of it
    "a long integer": ("pyproject.toml", "[tool.fallline]\nthresholds = { FL120 = { factor = " + "9" * 5_000 + " } }"),
    "a large number": ("pyproject.toml", "[tool.fallline]\nthresholds = { FL120 = { factor = 1e400 } }"),
    "tool is a list": ("pyproject.toml", "tool = [1]\n# tool.fallline\n"),
    "tool.fallline is a list": ("pyproject.toml", "[tool]\nfallline = [1]\n# tool.fallline\n"),
    "nul in cache-dir": ("pyproject.toml", '[tool.fallline]\ncache-dir = "a\\u0000b"\n'),
    "a device as baseline": ("pyproject.toml", '[tool.fallline]\nbaseline = "/dev/zero"\n'),
    "a folder as baseline": ("pyproject.toml", '[tool.fallline]\nbaseline = "."\n'),
    "a long path": ("pyproject.toml", f'[tool.fallline]\ncache-dir = "{"a/" * 5_000}"\n'),
    "control sequences": ("pyproject.toml", '[tool.fallline]\n"\\u001b[2J" = 1\n'),
}  # fmt: skip


@pytest.mark.parametrize("name", DEEP)
def test_nested_too_deeply_and_of_the_wrong_kind(
    project: Path, fallline: Callable, name: str
) -> None:
    file, text = DEEP[name]
    (project / file).write_text(text)
    (project / "good.py").write_text(WRONG)
    no_fault_of_ours(fallline("check", "."))


@quick
@given(value=anything, key=st.sampled_from(["select", "ignore", "exclude", "per-file-ignores", "baseline", "cache-dir", "thresholds", "what"]))  # fmt: skip
def test_any_setting(project: Path, fallline: Callable, key: str, value: object) -> None:
    text = json.dumps(value, allow_nan=True).replace("NaN", "nan").replace("Infinity", "inf")
    if not isinstance(value, dict) and value is not None:
        (project / "pyproject.toml").write_text(
            f"[tool.fallline]\n{key} = {text}\n", errors="replace"
        )
        (project / "a.py").write_text(WRONG)
        no_fault_of_ours(fallline("check", "a.py", "--no-cache"))


@quick
@given(value=anything)
def test_any_baseline(project: Path, fallline: Callable, value: object) -> None:
    row = {"code": "FL803", "path": "a.py", "function": "", "line_hash": "x", "count": value}
    (project / "a.py").write_text(WRONG)
    for book in (value, {"findings": value}, {"findings": [value]}, {"findings": [row]}):
        (project / "b.json").write_text(json.dumps(book), errors="replace")
        no_fault_of_ours(fallline("check", "a.py", "--baseline", "b.json", "--no-cache"))
    (project / "b.json").write_text(json.dumps({"findings": [row]}).replace("null", "1e400"))
    no_fault_of_ours(fallline("check", "a.py", "--baseline", "b.json", "--no-cache"))


@quick
@given(value=anything)
def test_any_notebook(project: Path, fallline: Callable, value: object) -> None:
    cell = {"cell_type": "code", "source": value}
    for book in (value, {"cells": value}, {"cells": [value]}, {"cells": [cell], "metadata": value}):
        (project / "a.ipynb").write_text(json.dumps(book), errors="replace")
        no_fault_of_ours(fallline("check", "a.ipynb", "--fix", "--no-cache"))


@quick
@given(
    data=st.binary(max_size=200) | st.text(max_size=100).map(lambda t: t.encode(errors="replace"))
)
def test_any_bytes(project: Path, fallline: Callable, data: bytes) -> None:
    (project / "a.py").write_bytes(b"import torch\n" + data)
    no_fault_of_ours(fallline("check", "a.py", "--fix", "--no-cache"))


@pytest.mark.parametrize("style", ["full", "concise", "json", "sarif", "github"])
def test_control_sequences_in_names_and_text_are_shown_and_not_sent(
    project: Path, fallline: Callable, style: str
) -> None:
    (project / f"a{ESC}.py").write_text(f"{WRONG}# {ESC}\n")
    (project / "b.py").write_text(f"import torch\nx = '{ESC}\n")
    ran = fallline("check", ".", "--output-format", style, "--explain", "--show-notes")
    no_fault_of_ours(ran)
    assert ran.status == 1 and "\u202e" not in ran.out + ran.err
    if style == "json":
        assert any(ESC in finding["path"] for finding in json.loads(ran.out))


def test_what_a_killed_write_left_is_cleared_and_nothing_else(
    project: Path, fallline: Callable
) -> None:
    (project / "a.py").write_text(WRONG)
    ended = subprocess.run(
        [sys.executable, "-c", "from fallline.files import temporary_name; print(temporary_name())"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    (project / ended).write_text("half a file")
    theirs = [".fallline-notes.tmp", ".fallline-1-2-3.tmp", ended.replace(".tmp", ".txt")]
    alive = ended.split("-")
    alive[2] = str(os.getpid())
    for name in (*theirs, "-".join(alive)):
        (project / name).write_text("mine")
    fallline("check", ".", "--no-cache")
    there = {p.name for p in project.iterdir()}
    assert ended not in there and {*theirs, "-".join(alive)} <= there
