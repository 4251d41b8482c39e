"""The reader's work is bounded in every direction. Counted in work and in memory, never in seconds."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fallline.flow import networks
from fallline.reader import traces_of
from fallline.reader.machine import Machine
from fallline.syntax import Project, Source
from fallline.syntax.names import UNKNOWN, computed
from fallline.verdict.reading import read_data, read_text

_HEAD = """import torch
from torch import nn
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
_LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""
GROWING = {
    "numbers": "a = 3\n" + "a = a * a\n" * 40,
    "numbers in place": "a = 3\n" + "a *= a\n" * 40,
    "a chain of names": "f0 = 99\n"
    + "".join(f"f{i} = f{i - 1} * f{i - 1}\n" for i in range(1, 40)),
    "text": "a = 'x' * 3000000000\n",
    "text on the right": "a = 3000000000 * 'x'\n",
    "text again and again": "a = 'x'\n" + "a = a + a\n" * 60,
    "a wide format": "a = '%3000000000d' % 5\n",
    "lists": "a = [1]\n" + "a = a + a\n" * 60,
    "lists in place": "a = [1]\n" + "a += a\n" * 60,
    "lists times a number": "a = [1]\n" + "a = a * 64\n" * 10,
    "lists of lists": f"a = {[[[0] * 40] * 40] * 40}\n",
    "a number too large for a float": f"loss = model(x) / {'9' * 400}\n",
    "lists that hold themselves": "a = list(model.parameters())\n"
    + "a = [*a, *a]\n" * 60
    + "b = [a]\n"
    + "b = [b, b]\n" * 60
    + "sgd = torch.optim.SGD(b, lr=0.1)\nnet = nn.Sequential(*b)\n"
    + "def held(x):\n    c = (model(x),)\n"
    + "    c = (c, c)\n" * 60
    + "    loss = c[0]\n    return c\nheld(x)\n",
    "names of names": "n = start\n" + "n = n.following\n" * 3000,
}
_READ = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from fallline.syntax import Project
from fallline.rules import all_rules
from fallline.verdict.reading import read_data
reading = read_data("train.py", sys.stdin.buffer.read(), Project(), all_rules())
assert not reading.failures, reading.failures
print([f.code for f in reading.findings])
"""


def read_within_bounds(text: str) -> list[str]:
    """The codes that are found, in a process that may use one gigabyte and a minute of processor time."""
    ran = subprocess.run([sys.executable, "-c", _READ], input=text.encode(), capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]
    codes = ast.literal_eval(ran.stdout.decode())
    assert isinstance(codes, list)
    return codes


@pytest.mark.parametrize("growing", GROWING.values(), ids=GROWING.keys())
def test_what_grows_on_paper_stops_growing(growing: str) -> None:
    assert read_within_bounds(_HEAD + growing + _LOOP) == []


@pytest.mark.parametrize(
    "expression", ["3 ** 999", "'x' * 5000", "5000 * b'x'", "'%09999d' % 1", "'%*d' % (9999, 1)"]
)
def test_constants_that_are_too_large_are_not_computed(expression: str) -> None:
    node = ast.parse(expression, mode="eval").body
    assert isinstance(node, ast.BinOp)
    left, right = (ast.literal_eval(side) for side in (node.left, node.right))
    assert computed(node.op, left, right) is UNKNOWN


def test_constants_that_people_write_are_computed() -> None:
    assert computed(ast.Mult(), 1024, 1024**2) == 1024**3
    assert computed(ast.Add(), "epoch_", "1") == "epoch_1"
    assert computed(ast.Mod(), "epoch_%03d", 7) == "epoch_007"


def work(text: str) -> int:
    """Statements' worth of work of the first execution on paper."""
    counted: list[int] = []
    trace = Machine.trace
    module = Project().add(Source.from_bytes("train.py", text.encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "trace", lambda m: (counted.append(m.bounds.spent), trace(m))[1])
        next(traces_of(module, time.thread_time() + 3600))
    return counted[0]


def test_a_long_literal_is_evaluated_as_far_as_it_can_matter() -> None:
    def literal(length: int) -> str:
        return _HEAD + _LOOP + f"    data = {list(range(length))}\n"

    assert work(literal(50_000)) == work(literal(5_000))


def test_a_long_table_is_not_parsed_number_by_number() -> None:
    table = "data = [\n" + "    1.5, -2,\n" * 60_000 + "]\n"
    tree = Source.from_bytes("train.py", (table + _HEAD + _LOOP).encode()).parse()
    assert sum(isinstance(node, ast.Constant) for node in ast.walk(tree)) < 5_000
    lines = (table + _HEAD + _LOOP).splitlines()
    assert tree.body[-1].end_lineno == len(lines)  # what comes after it is where it was


def test_a_silencing_comment_is_looked_for_in_one_pass(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    wrong = _LOOP.replace("    optimizer.zero_grad()\n", "")
    script.write_text(_HEAD + "import os  # noqa\n" + "\n" * 200_000 + wrong)
    limited = [sys.executable, "-m", "fallline", "check", "train.py", "--no-cache", "--jobs", "1"]
    ran = subprocess.run(
        limited,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (60, 60)),
    )
    assert ran.returncode == 1 and "FL106" in ran.stdout, ran.stderr


@pytest.mark.parametrize("count", [5_000])
def test_many_branches_are_tried_within_the_bounds(count: int) -> None:
    branches = "".join(f"if args.f{i}:\n    optimizer.zero_grad()\n" for i in range(count))
    module = Project().add(Source.from_bytes("train.py", (_HEAD + branches + _LOOP).encode()))
    spent: list[int] = []
    trace = Machine.trace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "trace", lambda m: (spent.append(m.bounds.spent), trace(m))[1])
        for _ in traces_of(module, time.thread_time() + 3600):
            pass
    assert sum(spent) < 120_000


def test_losses_that_call_each_other_are_followed_once() -> None:
    names = [f"loss{i}" for i in range(10)]
    losses = "".join(
        f"def {name}(pred, target):\n    return F.mse_loss(pred, target)"
        + "".join(f" + {other}(pred, target)" for other in names if other != name)
        + "\n"
        for name in names
    )
    source = Source.from_bytes("losses.py", f"import torch.nn.functional as F\n{losses}".encode())
    module = Project().add(source)
    followed: list[object] = []
    graph_of = networks.graph_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "graph_of", lambda *a: (followed.append(a), graph_of(*a))[1])
        for name in module.all(ast.Name):
            networks.graph_of(module, name)
    assert len(followed) < 1_000


DEEP = {
    "elif": "if args.k == 0:\n    pass\n"
    + "".join(f"elif args.k == {i}:\n    lr = {i}\n" for i in range(1, 1500)),
    "functions that call each other": "".join(
        f"def f{i}(model, x):\n    model(x).backward()\n    f{(i + 1) % 2000}(model, x)\n"
        for i in range(2000)
    ),
}


@pytest.mark.parametrize("deep", DEEP.values(), ids=DEEP.keys())
def test_what_is_nested_deeply_is_not_a_failure(deep: str) -> None:
    from fallline.rules import all_rules

    data = (_HEAD + deep + _LOOP).encode()
    reading = read_data("train.py", data, Project(), all_rules(), seconds=3600)
    assert reading.failures == ()
    assert all(finding.code == "FL000" for finding in reading.findings)


def test_a_loss_made_at_module_level_is_used_in_a_function() -> None:
    """The value of a global is looked up aside from the execution: its forward pass is not part of it."""
    text = """import torch
from torch import nn
model = nn.Linear(4, 4)
criterion = nn.MSELoss()
history = []
for x, y in loader:
    loss = criterion(model(x), y)
    kept = [loss]

def step():
    loss.backward()

def store():
    for x, y in loader:
        history.append(loss)
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    assert [f.code for f in read_text(text)] == []
