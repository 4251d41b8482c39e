"""Layers in plain lists that are known by an annotation, or by the name of their maker and by being called."""

from __future__ import annotations

from pathlib import Path

import pytest

from fallline.finding import Severity
from fallline.verdict.project import read_paths
from fallline.verdict.reading import read_text

ANNOTATED = """\
from typing import List, Optional

from torch import nn

from .makers import make


class Merge(nn.Module):
    def __init__(self, layers=None):
        super().__init__()
        self.parts: Optional[List[nn.Module]] = None
        if layers is not None:
            self.parts = []
            for layer in layers:
                self.parts.append(make(layer))

    def forward(self, x):
        return [part(x) for part in self.parts]
"""
NAMED = """\
from torch import nn

from .makers import get_block


class Stack(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.blocks = [get_block(size) for size in sizes]

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""


def found(source: str) -> list[tuple[int, Severity]]:
    return [(f.at.line, f.severity) for f in read_text(source) if f.code == "FL801"]


def test_an_annotation_says_what_a_list_holds() -> None:
    assert found(ANNOTATED) == [(13, Severity.ERROR)]


def test_a_maker_named_after_layers_is_presumed_to_make_them() -> None:
    assert found(NAMED) == [(9, Severity.INFO)]


@pytest.mark.parametrize(
    "source",
    [
        ANNOTATED.replace("nn.Module]]", "str]]"),
        ANNOTATED.replace("self.parts = []", "self.parts = nn.ModuleList()"),
        NAMED.replace(
            "[get_block(size) for size in sizes]",
            "nn.ModuleList([get_block(size) for size in sizes])",
        ),
        NAMED.replace("get_block", "get_scale"),
        # only looked up, never called
        NAMED.replace("x = block(x)", "x = x + block.scale"),
    ],
)
def test_other_lists_are_left_alone(source: str) -> None:
    assert found(source) == []


HANDED = """\
from torch import nn


class Flow(nn.Module):
    def __init__(self, {argument}):
        super().__init__()
        self.steps = {kept}

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x


steps = {made}
steps += [nn.Linear(2, 2)]
model = Flow(steps)
"""


@pytest.mark.parametrize(
    ("argument", "kept", "made", "lines"),
    [
        ("steps", "steps", "[]", [7]),
        ("steps", "list(steps)", "[nn.Linear(2, 2) for _ in range(3)]", []),  # it may be anything
        ("steps", "steps", "nn.ModuleList()", []),
        ("steps: list[nn.Module] | None = None", "steps or []", "[]", [7]),
        ("steps=None", "steps if steps is not None else []", "[]", [7]),
        ("steps: Iterable[nn.Module]", "list(steps)", "[]", [7]),
        ("steps: Iterable[nn.Module]", "nn.ModuleList(steps)", "[]", []),
    ],
)
def test_what_a_constructor_is_handed(
    argument: str, kept: str, made: str, lines: list[int]
) -> None:
    source = HANDED.format(argument=argument, kept=kept, made=made)
    assert [line for line, _ in found(source)] == lines


def test_functions_that_are_handed_over_are_no_layers() -> None:
    source = HANDED.format(argument="steps", kept="steps", made="[str.upper]")
    assert not found(source.replace("steps += [nn.Linear(2, 2)]\n", ""))


def test_a_list_of_lists_of_layers() -> None:
    source = """\
from torch import nn


class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.stages = []
        for _ in range(depth):
            stage = []
            for _ in range(2):
                stage.append(nn.Linear(2, 2))
            self.stages.append({kept})

    def forward(self, x):
        for stage in self.stages:
            for layer in stage:
                x = layer(x)
        return x
"""
    assert [line for line, _ in found(source.format(kept="stage"))] == [7]
    registered = source.replace("self.stages = []", "self.stages = nn.ModuleList()")
    assert not found(registered.format(kept="nn.ModuleList(stage)"))


def test_layers_that_another_file_hands_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = HANDED.format(argument="steps", kept="steps", made="[]").partition("steps = []")[0]
    Path("flow.py").write_text(source)
    Path("train.py").write_text(
        "from torch import nn\nfrom flow import Flow\n\nmodel = Flow([nn.Linear(2, 2) for _ in range(4)])\n"
    )
    readings = read_paths(["flow.py", "train.py"])
    places = [(f.at.path, f.at.line) for r in readings for f in r.findings if f.code == "FL801"]
    assert places == [("flow.py", 7)]


@pytest.mark.parametrize(
    ("says", "lines"),
    [
        ("-> nn.Module", [(8, Severity.ERROR)]),
        ("-> list[nn.Linear]", [(8, Severity.ERROR)]),
        ("-> str", []),
        ("", []),
    ],
)
def test_what_makes_them_says_that_they_are_layers(
    says: str, lines: list[tuple[int, Severity]]
) -> None:
    source = f"""\
from torch import nn
from .registry import registered


class Net(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.parts = {{}}
        for name in names:
            part = self.one(name)
            self.parts[name] = part

    def one(self, name) {says}:
        return registered[name]

    def forward(self, name, x):
        return self.parts[name](x)
"""
    assert found(source) == lines
    own = source.replace("registered[name]", "getattr(self, name)")
    assert not found(own)  # the model has it already
