"""Little memory and little time: every door answers within them, seen from outside, with `ulimit`."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lsp_client import Client as Editor
from tests.report.conftest import make_run

from mcp import Client, StdioServerParameters

ROOT = Path(__file__).parents[1]
WRONG = """\
import torch
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
WORST = {
    "long": WRONG + "x = [" + "1, " * 200_000 + "]\n",
    "deep": WRONG + "x = " + "(" * 150 + "1" + ")" * 150 + "\n",
    "wide": WRONG + "".join(f"def f{n}(x):\n    return x.view(-1)\n" for n in range(400)),
    "loops": WRONG + "".join("    " * n + f"for i{n} in range(9):\n" for n in range(15)) + "    " * 15 + "y = y * y\n",
    "power": WRONG + "n = 9 ** 9 ** 9 ** 9\ns = 'a' * 10 ** 12\n",
}  # fmt: skip
GIGABYTE = 1_000_000  # in the kilobytes of `ulimit -v`
MINUTE = 60


def within(kilobytes: int, seconds: int, *command: str) -> list[str]:
    """The command line of fallline with so much address space, and so much processor time for each process."""
    limits = f'ulimit -v {kilobytes} -t {seconds}; exec "$@"'
    return ["bash", "-c", limits, "bash", sys.executable, "-m", "fallline", *command]


def limited(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", WORST)
def test_check(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.py").write_text(WORST[name])
    done = limited(within(GIGABYTE, MINUTE, "check", ".", "--jobs", "1"), cwd=tmp_path)
    assert done.returncode == 1 and "mistake in fallline" not in done.stderr, done.stderr


def test_too_little_memory_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(WORST["long"] * 20)
    done = limited(within(120_000, MINUTE, "check", ".", "--jobs", "1"), cwd=tmp_path)
    assert done.returncode in (0, 1, 2), done.stderr
    assert "mistake in fallline" not in done.stderr


@pytest.mark.slow
def test_the_editor_gets_an_answer_for_each_of_them(tmp_path: Path) -> None:
    editor = Editor(tmp_path, command=within(2 * GIGABYTE, MINUTE, "lsp"))
    for name, text in WORST.items():
        editor.open(f"{name}.py", text)
        assert "FL101" in [d["code"] for d in editor.diagnostics(f"{name}.py")], name
    assert editor.close() == 0


@pytest.mark.slow
@pytest.mark.anyio
async def test_an_agent_gets_an_answer_for_each_of_them(tmp_path: Path) -> None:
    command = within(2 * GIGABYTE, MINUTE, "mcp", "--root", str(tmp_path))
    async with Client(StdioServerParameters(command=command[0], args=command[1:])) as client:
        for name, text in WORST.items():
            (tmp_path / f"{name}.py").write_text(text)
            checked = await client.call_tool("check_path", {"path": f"{name}.py"})
            assert checked.structured_content is not None, (name, checked.content)
            assert "FL101" in [f["code"] for f in checked.structured_content["findings"]], name


LONG_RUN = """insert into updates select {columns} from updates, (
    with recursive n(i) as (select 1 union all select i + 1 from n where i < {times}) select i from n
) where updates.rowid <= 200
"""


@pytest.mark.slow
@pytest.mark.parametrize(("times", "status"), [(500, 0), (700, 2)])
def test_report_of_the_longest_runs(tmp_path: Path, times: int, status: int) -> None:
    """A recorder keeps at most 100,000 updates; a folder that claims more is refused before it is read."""
    run = make_run(tmp_path / "run", updates=200)
    with contextlib.closing(sqlite3.connect(run / "rank0.sqlite")) as db, db:
        names = [row[1] for row in db.execute("pragma table_info(updates)")]
        columns = ", ".join("idx + 200 * i" if n == "idx" else n for n in names)
        db.execute(LONG_RUN.format(columns=columns, times=times))
    done = limited(within(GIGABYTE, MINUTE, "report", str(run)), cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert "mistake in fallline" not in done.stderr
    assert status != 2 or "more than 120,000 rows" in done.stderr
