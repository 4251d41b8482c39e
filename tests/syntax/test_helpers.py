"""What rules and fixes ask of a parsed file: where names come from, which expressions are modules, edits of calls."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fallline.flow.modules import has_state, is_module, looks_like_model
from fallline.syntax import Editor, Module, Project, Source
from fallline.syntax.edits import apply


def read(text: str) -> Module:
    return Project().add(Source("train.py", text))


def last_value(module: Module) -> ast.expr:
    statement = module.tree.body[-1]
    assert isinstance(statement, ast.Expr)
    return statement.value


def call_of(module: Module) -> ast.Call:
    value = last_value(module)
    assert isinstance(value, ast.Call)
    return value


def test_a_star_import_brings_what_the_other_file_imports(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text("import torch\nfrom train import *\n", encoding="utf-8")
    (tmp_path / "train.py").write_text("from utils import *\ntorch.no_grad()\n", encoding="utf-8")
    module = Project([str(tmp_path)]).module_at(str(tmp_path / "train.py"))
    assert module is not None
    assert [call.lineno for call in module.calls("torch.no_grad")] == [2]


@pytest.mark.parametrize(
    ("imports", "written"),
    [
        ("import torch", "torch.nn.ModuleList"),
        ("import torch.nn as nn", "nn.ModuleList"),
        ("import torch\nfrom torch import nn as layers", "layers.ModuleList"),
        ("from torch.nn import ModuleList", "ModuleList"),
        ("import numpy", None),
    ],
)
def test_names_are_spelled_as_the_file_spells_them(imports: str, written: str | None) -> None:
    assert read(imports).spelling("torch.nn.ModuleList") == written


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ("f(x)", "f(x, k=1)"),
        ("f()", "f(k=1)"),
        ("f((x),)", "f((x), k=1)"),
        ("f(\n  x,  # why, though\n)", "f(\n  x, k=1  # why, though\n)"),
        ("é.f(ü, (y))", "é.f(ü, (y), k=1)"),
    ],
)
def test_add_argument(text: str, added: str) -> None:
    module = read(text)
    assert apply(text, [Editor(module).add_argument(call_of(module), "k=1")]) == added


@pytest.mark.parametrize(
    ("text", "removed"),
    [
        ("f(x, k=1)", "f(x)"),
        ("f((x), k=1)", "f((x))"),
        ("f(k=1)", "f()"),
        ("f(k=1, z=2)", "f(z=2)"),
        ("f(g(k=1), *a, k = 1)", "f(g(k=1), *a)"),
        ("f(\n (x),\n k=1,\n)", "f(\n (x),\n)"),
    ],
)
def test_remove_keyword(text: str, removed: str) -> None:
    module = read(text)
    edit = Editor(module).remove_keyword(call_of(module), "k")
    assert edit is not None
    assert apply(text, [edit]) == removed


def test_wrap_indents_lines_but_never_text() -> None:
    text = "for x in y:\n    f(x)\n\n    g(x)\n"
    module = read(text)
    edits = Editor(module).wrap(module.tree.body[0], "with z:")
    assert edits is not None
    assert apply(text, edits) == "with z:\n    for x in y:\n        f(x)\n\n        g(x)\n"
    told = read('for x in y:\n    f("""\nas it is\n""")\n')
    assert Editor(told).wrap(told.tree.body[0], "with z:") is None


HEAD = """\
import torch
from torch import nn
import torchvision
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
class Mean(nn.Module):
    def forward(self, x):
        return x.mean()
class Plain: ...
net = Net().cuda()
wrapped = Net()
wrapped = nn.DataParallel(wrapped)
mixed = Net()
mixed = mixed.state_dict()
plain = Plain()
"""


@pytest.mark.parametrize(
    ("expression", "module", "state"),
    [
        ("nn.Linear(2, 2)", True, True),
        ("nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval()", True, True),
        ("nn.Sequential(nn.ReLU())", True, False),
        ("nn.ReLU()", True, False),
        ("Net().to('cuda')", True, True),
        ("Mean()", True, False),
        ("torchvision.models.resnet18()", True, True),
        ("torch.compile(Net())", True, True),
        ("nn.Parameter(x)", False, False),
        ("Plain()", False, False),
        ("net", True, False),
        ("wrapped", True, False),
        ("mixed", False, False),
        ("plain", False, False),
        ("unknown", False, False),
    ],
)
def test_which_expressions_are_modules(expression: str, module: bool, state: bool) -> None:
    parsed = read(HEAD + expression)
    node = last_value(parsed)
    assert is_module(parsed, node) == module
    assert has_state(parsed, node) == state


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("model", True),
        ("self.net", True),
        ("teacher_model", True),
        ("load_model", False),
        ("planet", False),
        ("models", False),
        ("other.net", False),
    ],
)
def test_a_name_that_says_model(name: str, says: bool) -> None:
    assert looks_like_model(last_value(read(name))) == says
